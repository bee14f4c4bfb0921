"""Page checksums: no value is decoded from a page that does not match its checksum.

A Parquet page may carry the CRC-32 of its bytes. Arrow 14 can verify it, but its Python binding does not offer that. So
Arrow reads through ``VerifiedFile``, which verifies each column chunk on its way. Pages without a checksum are
accepted, whoever wrote them: ``prepare`` writes one a page, files that were adopted may have none. ``sparkring datasets verify``
checks every byte.

The checksum covers a page's body. Headers and footers are covered by their own consistency: sizes, row counts and the
schema must agree with the manifest (dataset/integrity.py) and with each other.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from sparkring.errors import DatasetError
from sparkring.pipelines.data.loading.page_headers import NONSENSE, PageHeader
from sparkring.pipelines.data.stores.base import Readable


class VerifiedFile(io.RawIOBase):
    """A Parquet file for Arrow to read; a column chunk is verified before Arrow gets it."""

    def __init__(self, source: pa.NativeFile, *, path: str) -> None:
        """Read ``source``; errors name it ``path``."""
        self._source, self._path = source, path
        self._groups: tuple[int, ...] = ()
        self._chunks: list[tuple[int, int, pq.ColumnChunkMetaData]] = []

    def expect(self, metadata: pq.FileMetaData, *groups: int) -> None:
        """Expect reads of whole column chunks of these row groups; before the first call, reads of the footer."""
        if groups != self._groups:
            self._groups = groups
            self._chunks = sorted(((first_byte(chunk), group, chunk) for group in groups for chunk in _chunks(metadata.row_group(group))),
                                  key=lambda entry: entry[0])

    def read_buffer(self, size: int) -> pa.Buffer:
        """The next ``size`` bytes.

        Raises:
            DatasetError: a page of a column chunk does not match its checksum, or part of a chunk would be read.
        """
        offset = self._source.tell()
        data = self._source.read_buffer(size)
        if self._groups and size:
            self._verify(memoryview(data).cast("B"), offset)
        return data

    def _verify(self, view: memoryview, offset: int) -> None:
        """Verify the column chunks that a read holds: Arrow reads them whole, one or several at once."""
        first = bisect_right(self._chunks, offset, key=lambda entry: entry[0] + entry[2].total_compressed_size)
        for begin, group, chunk in self._chunks[first:]:
            at, size = begin - offset, chunk.total_compressed_size
            if at >= len(view):
                break
            place = f"column {chunk.path_in_schema} of row group {group} of {self._path}"
            if at < 0 or at + size > len(view):
                raise DatasetError(f"{place} was read in part, so its checksums cannot be verified; write the file with a newer Parquet "
                                   "library, or prepare it by `sparkring prepare`.")
            if chunk.num_values:
                verify_pages(view[at:at + size], num_values=chunk.num_values, place=place)

    def read(self, size: int = -1) -> bytes:
        """The next ``size`` bytes, checked as by ``read_buffer``."""
        data: bytes = self.read_buffer(self._source.size() - self._source.tell() if size < 0 else size).to_pybytes()
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to ``offset``."""
        return int(self._source.seek(offset, whence))

    def tell(self) -> int:
        """Where the next read begins."""
        return int(self._source.tell())

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True


def verify_pages(chunk: memoryview, *, num_values: int, place: str) -> None:
    """Compare each page of a column chunk with its checksum, if it has one, and the values of all pages with the footer.

    Args:
        chunk: The bytes of the column chunk.
        num_values: Number of its values according to the footer.
        place: Name of the column chunk in errors.
    Raises:
        DatasetError: a page does not match its checksum, or a header cannot be read.
    """
    at = values = 0
    while at < len(chunk):
        try:
            page = PageHeader.read(chunk, at)
            values += page.num_values
        except NONSENSE:
            raise damaged(f"{place} has no readable page header at byte {at} of the column") from None
        found = page.found_crc(chunk)
        if found != page.crc:
            raise damaged(f"{place} has a page with CRC-32 {found:08x}, its header says {page.crc:08x}")
        at = page.end
    if values != num_values:
        raise damaged(f"{place} has pages of {values} values, the footer says {num_values}")


def read_verified(source: pa.NativeFile, *, path: str, columns: Sequence[str], groups: Sequence[int] | None = None) -> pa.Table:
    """Columns of a Parquet file, of all row groups or of these; all pages that have a checksum are verified.

    Raises:
        DatasetError: a page is damaged; the error names ``path``.
    """
    verified = VerifiedFile(source, path=path)
    parquet = pq.ParquetFile(verified, pre_buffer=False)
    wanted = range(parquet.num_row_groups) if groups is None else groups
    verified.expect(parquet.metadata, *wanted)
    return parquet.read_row_groups(list(wanted), columns=list(columns), use_threads=False)


def verify_file(store: Readable, name: str) -> None:
    """Verify all pages of a file, to name the one that Spark failed on.

    Raises:
        DatasetError: a page is damaged.
    """
    with store.open_input(name) as source:
        verified = VerifiedFile(source, path=store.path(name))
        metadata = pq.ParquetFile(verified).metadata
        for group in range(metadata.num_row_groups):
            verified.expect(metadata, group)
            for chunk in _chunks(metadata.row_group(group)):
                verified.seek(first_byte(chunk))
                verified.read_buffer(chunk.total_compressed_size)


def damaged(found: str) -> DatasetError:
    """The error for a damaged page."""
    return DatasetError(f"{found}; the file changed after it was written. Run `sparkring datasets verify` to list all such "
                        "files, then restore them or prepare a new version.")


def first_byte(chunk: pq.ColumnChunkMetaData) -> int:
    """Where a column chunk begins in its file: its dictionary, if it has one, lies before its data."""
    first = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
    return int(first if first and first < chunk.data_page_offset else chunk.data_page_offset)


def _chunks(group: pq.RowGroupMetaData) -> Iterator[pq.ColumnChunkMetaData]:
    return map(group.column, range(group.num_columns))
