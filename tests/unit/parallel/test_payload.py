"""A message as bytes: whatever tensors go in come out, and nothing else is taken for a message."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from sparkring.errors import PipelineShapeError, RingError
from sparkring.pipelines.parallel.transports.payload import copies, flat_bytes, pack, read, read_refusal, refusal, write
from sparkring.pipelines.parallel.transports.tensor_specs import (
    DTYPES,
    HEADER_BYTES,
    LEAST_BYTES,
    TensorSpecs,
    header_tensor,
    pack_header,
    read_header,
    unpack_header,
)
from tests.support.cell import needs_simulated_gpu

TOKEN = bytes(range(16))


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> Tensor:
    """Random bits of a dtype; bools are 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    size = math.prod(shape) * dtype.itemsize
    bits = torch.randint(0, 2 if dtype is torch.bool else 256, (size,), dtype=torch.uint8, generator=generator)
    return bits.view(dtype).reshape(shape)


def journey(tensors: list[Tensor]) -> list[Tensor]:
    """Through header and payload, as if to another rank."""
    specs = TensorSpecs.of(tensors)
    payload = pack(specs, tensors)
    assert len(payload) == specs.nbytes >= LEAST_BYTES
    told = read_header(header_tensor(specs))
    assert told == specs
    return read(told, payload.clone())


@needs_simulated_gpu
@pytest.mark.parametrize("shapes", [[(3, 4)], [(64, 2)], [(3, 4), (5,), ()]], ids=["short", "its own memory", "several"])
def test_tensors_on_a_device_travel_and_arrive_on_it(shapes: list[tuple[int, ...]]) -> None:
    device = torch.device("cuda", 0)
    with FakeTensorMode():
        tensors = [torch.zeros(shape, device=device) for shape in shapes]
        specs = TensorSpecs.of(tensors)
        payload = pack(specs, tensors, device)
        assert (payload.device, payload.numel()) == (device, specs.nbytes)
        assert [(tensor.device, tuple(tensor.shape)) for tensor in read(specs, payload)] == [(device, shape) for shape in shapes]
        from_host = pack(specs, [torch.zeros(shape) for shape in shapes], device)
        assert from_host.device == device, "where the receiver expects it"


def same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(flat_bytes(one), flat_bytes(other))


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=4).map(tuple)), max_size=6), st.integers(0, 2**32))
def test_tensors_of_every_dtype_and_shape_come_out_as_they_went_in(parts: list[tuple[torch.dtype, tuple[int, ...]]], seed: int) -> None:
    tensors = [tensor_of(dtype, shape, seed + place) for place, (dtype, shape) in enumerate(parts)]
    arrived = journey(tensors)
    assert len(arrived) == len(tensors)
    assert all(same(one, other) for one, other in zip(tensors, arrived, strict=True))
    copied = copies(TensorSpecs.of(tensors), pack(TensorSpecs.of(tensors), tensors))
    assert all(same(one, other) for one, other in zip(tensors, copied, strict=True))


def test_copying_by_address_stays_within_a_payload() -> None:
    tensors = [torch.ones(100), torch.ones(3)]
    specs = TensorSpecs.of(tensors)
    short = torch.zeros(specs.nbytes - 1, dtype=torch.uint8)
    with pytest.raises(RingError, match=f"announces {specs.nbytes} bytes and has {specs.nbytes - 1}"):
        write(specs, tensors, short)
    with pytest.raises(RingError, match=f"announces {specs.nbytes} bytes and has {specs.nbytes - 1}"):
        copies(specs, short)
    assert not short.any()
    with pytest.raises(RuntimeError):  # a tensor that is smaller than its layout says
        write(specs, [torch.ones(99), torch.ones(3)], torch.zeros(specs.nbytes, dtype=torch.uint8))


def test_zeros_without_memory_come_out_as_zeros() -> None:
    payload = torch.full((1024,), 7, dtype=torch.uint8)
    zeros = torch._efficientzerotensor((3,), dtype=torch.float32)
    specs = TensorSpecs.of([zeros])
    write(specs, [zeros], payload)
    assert torch.equal(copies(specs, payload)[0], torch.zeros(3))


def test_tensors_that_are_no_plain_memory_come_out_dense() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    turned = [base.t(), base[:, ::2], base[0].expand(3, 6), base[1:2, 5], torch.tensor([1 + 2j]).conj(), base.clone().requires_grad_()]
    arrived = journey(turned)
    assert all(torch.equal(one.detach().resolve_conj(), other) for one, other in zip(turned, arrived, strict=True))
    assert all(tensor.is_contiguous() and not tensor.requires_grad for tensor in arrived)


def test_one_contiguous_tensor_is_sent_from_where_it_lies_and_several_are_copied_together() -> None:
    tensor = torch.arange(1000.0)
    assert pack(TensorSpecs.of([tensor]), [tensor]).data_ptr() == tensor.data_ptr()
    assert pack(TensorSpecs.of([tensor] * 2), [tensor] * 2).data_ptr() != tensor.data_ptr()


def test_autograd_counts_the_versions_of_a_messages_tensors_apart() -> None:
    first, second = journey([torch.ones(100), torch.ones(100)])
    before = second._version
    first.add_(1)
    assert second._version == before
    view_1, view_2 = torch.ones(200).split(100)  # the control: as views of one payload they would be counted together
    before = view_2._version
    view_1.add_(1)
    assert view_2._version == before + 1


@pytest.mark.parametrize("data", [
    pytest.param(b"", id="nothing"),
    pytest.param(bytes(HEADER_BYTES), id="zeros"),
    pytest.param(bytes(range(256)), id="other bytes"),
    pytest.param(pack_header(TensorSpecs.of([torch.ones(2, 3)]))[:-1], id="cut short"),
    pytest.param(pack_header(TensorSpecs.of([torch.ones(3)]))[:-8] + (-3).to_bytes(8, "little", signed=True), id="a negative size"),
    pytest.param(pack_header(TensorSpecs(((torch.int8, (1 << 62, 4, 0)),))), id="an empty tensor of sizes beyond counting"),
    pytest.param(pack_header(TensorSpecs.of([torch.ones(3)])).replace(bytes([DTYPES.index(torch.float32), 1]), b"\xff\x01"),
                 id="no such dtype"),
])
def test_what_is_no_header_is_not_taken_for_one(data: bytes) -> None:
    with pytest.raises(RingError, match="does not begin as one of ours; all ranks must run the same version"):
        unpack_header(data)


def test_what_cannot_be_carried_is_refused_with_what_can() -> None:
    with pytest.raises(PipelineShapeError, match=r"tensor of torch.sparse_coo on cpu, transports carry dense ones; call to_dense\(\)"):
        flat_bytes(torch.eye(3).to_sparse())
    for layout in (torch.strided, torch.jagged):
        with pytest.raises(PipelineShapeError, match=r"a nested tensor, transports carry dense ones; call to_padded_tensor\(\)"):
            TensorSpecs.of([torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)])
    with pytest.raises(PipelineShapeError, match="message of 300 tensors has a header of 5406 bytes, a transport carries 4096"):
        pack_header(TensorSpecs.of([torch.ones(1, 1)] * 300))
    with pytest.raises(PipelineShapeError, match=r"a tensor of torch.quint8, which no transport carries; send one of bool, uint8"):
        pack_header(TensorSpecs(((torch.quint8, (1,)),)))


@pytest.mark.parametrize(("length", "seen"), [
    pytest.param(LEAST_BYTES, True, id="in the smallest payload"),
    pytest.param(10**6, True, id="in a large one"),
])
def test_a_refusal_is_told_from_a_payload_by_the_launchs_token(length: int, seen: bool) -> None:
    found = TensorSpecs.of([torch.ones(2, 3), torch.ones((), dtype=torch.int64)])
    assert str(found) == "float32 [2, 3], int64 []"
    travelled = refusal(found, token=TOKEN, length=length)
    assert len(travelled) == length
    assert read_refusal(travelled, token=TOKEN) == found
    assert read_refusal(travelled, token=bytes(16)) is None  # the control: another launch's bytes are a payload


def test_a_refusal_whose_header_does_not_fit_says_only_that_it_is_one() -> None:
    assert read_refusal(refusal(TensorSpecs.of([torch.ones(1, 1)] * 100), token=TOKEN, length=LEAST_BYTES), token=TOKEN) == TensorSpecs(())
