"""Several commands of the command line in one process, so that they share a Spark session.

    python -m tests.support.commands_main '[["prepare", "my.yaml"], ["train", "my.yaml"]]'
"""

from __future__ import annotations

import json
import sys

from sparkring.cli.app import app

for arguments in json.loads(sys.argv[1]):
    app(arguments, standalone_mode=False)
