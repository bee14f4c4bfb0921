"""The command line: ``sparkring COMMAND [CONFIG] [--set key=value ...]``, a verb for each operation and no flag for a field.

Exit codes: 0 done; 1 a check failed (``doctor``, ``chaos``, ``verify``); 2 a fault of the input or the cluster, reported in one line;
3 rows that break ``prepare.expectations``; 130 ended by Ctrl-C; 143 ended by SIGTERM. ``train`` saves first in both cases. ``retrain`` can
also tell its outcome (``--exit-codes``). A bug keeps its traceback. The commands (cli/app.py) are imported once Ctrl-C is handled.
"""

from __future__ import annotations

import sys

from sparkring.cli.terminal.interrupt import INTERRUPTED, Interrupt
from sparkring.errors import ExpectationsNotMet, SparkringError, Stopped
from sparkring.extras import extras_named

FAULT, UNMET = 2, 3


def main() -> None:
    """Run the command line; a fault of the input or the cluster ends in one line, then a line for each note, and exit code 2."""
    interrupt = Interrupt()
    try:
        with interrupt.handled(), extras_named():
            from sparkring.cli.app import app
            from sparkring.cli.terminal.quiet import silence_lost_jvm

            silence_lost_jvm()
            app()
    except Stopped as stopped:
        _end(_with_notes(str(stopped), stopped), 128 + stopped.signal_number)
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            _end("interrupted", INTERRUPTED)
        if ended.code:
            raise
        # After a command that is done it returns: who calls the entry point, as for a wheel task, may take any SystemExit for a failure.
    except KeyboardInterrupt:  # while the commands were being imported; later typer exits
        _end("interrupted", INTERRUPTED)
    except Exception as error:
        if interrupt.asked:  # a cancelled job raises too
            _end("interrupted", INTERRUPTED)
        if not isinstance(error, SparkringError):
            raise
        _end(_with_notes(f"error: {error}", error), UNMET if isinstance(error, ExpectationsNotMet) else FAULT)


def _with_notes(line: str, error: BaseException) -> str:
    """The line, and below it the notes that were added to the error (PEP 678), each on its own line."""
    return "\n".join([line, *getattr(error, "__notes__", ())])


def _end(text: str, code: int) -> None:
    print(text, file=sys.stderr)  # noqa: T201 (not through rich: the traceback of a failed rank may be part of the text)
    sys.exit(code)


if __name__ == "__main__":
    main()
