"""A command that loses its JVM says so in one line, and Py4J, which raises what it logs, adds nothing to it."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOSES_ITS_JVM = """
import socket, sys, threading
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError
from sparkring.cli.terminal.quiet import silence_lost_jvm

listener = socket.create_server(("127.0.0.1", 0))

def hang_up():
    while True:
        connection, _ = listener.accept()
        connection.recv(1)  # what comes after it was not read, so the other end hears of a reset
        connection.close()

threading.Thread(target=hang_up, daemon=True).start()
if sys.argv[1] == "silenced":
    silence_lost_jvm()
try:
    JavaGateway(gateway_parameters=GatewayParameters(port=listener.getsockname()[1])).jvm.java.lang.System.nanoTime()
except Py4JError as error:
    print(f"error: {type(error).__name__}", file=sys.stderr)
import logging
logging.warning("ours")
"""


@pytest.mark.parametrize("logging", ["silenced", "as it is"])
def test_of_a_lost_jvm_only_the_error_is_told(logging: str) -> None:
    said = subprocess.run([sys.executable, "-c", LOSES_ITS_JVM, logging], capture_output=True, text=True, timeout=60, check=True).stderr
    lines = said.splitlines()
    assert lines[-1] == "WARNING:root:ours"
    assert lines[-2].startswith("error: ")
    assert ("Traceback (most recent call last):" in lines) == (logging == "as it is"), said
