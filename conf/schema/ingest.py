"""What ``sparkring ingest`` reads as a stream."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sparkring.conf.schema.base.section import Section
from sparkring.conf.schema.data.splits import Age


class IngestConfig(Section):
    """A source whose new rows become dataset versions as they come, by Spark's Structured Streaming."""

    source: str | None = None
    """The one of ``prepare.sources`` that grows; the others are read whole each time. Default: the only one."""
    format: Annotated[str, Field(min_length=1)] | None = None
    """Spark's name of another kind of stream to read in the source's place, e.g. ``kafka``, ``delta`` or ``cloudFiles``; the source's
    ``columns`` are then taken from its rows. Default: the files of the source's own ``path``."""
    options: dict[str, str] = {}
    """Options of Spark's stream, e.g. ``{maxFilesPerTrigger: "10"}``; a secret belongs into Spark's settings, not here."""
    every: Age | None = None
    """Look for new rows so often, in whole hours, days or weeks (``1h``, ``2d``, ``1w``), until the command is stopped. Null: take
    what is there, then end."""
