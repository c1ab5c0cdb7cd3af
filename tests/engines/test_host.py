"""The processes of one host: their sockets."""

import logging
import socket
from pathlib import Path

import pytest
from eventually import eventually

from holdfast.engines.host import DatagramListener
from holdfast.runtime import SystemRuntime


# PF3
async def test_a_listener_goes_on_after_a_message_that_cannot_be_handled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    received: list[bytes] = []

    def handle(data: bytes) -> None:
        received.append(data)
        if data == b"bad":
            raise ValueError("no message")

    listener = DatagramListener(tmp_path / "socket", SystemRuntime(), handle, "test")
    try:
        with caplog.at_level(logging.ERROR), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"bad", str(tmp_path / "socket"))
            sender.sendto(b"good", str(tmp_path / "socket"))
            await eventually(lambda: len(received) == 2, "both messages")
    finally:
        listener.close()
    assert "could not be handled" in caplog.text
