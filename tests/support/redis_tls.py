"""A Redis server that speaks TLS, with certificates that the test makes.

The servers of the wheels are built without TLS. Where no other server is found, a thread of the test decrypts the
connections and forwards them to a server, as a proxy such as stunnel does.
"""

import asyncio
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from postgres_cluster import free_port
from proxy import close_listener
from redis_binaries import find_all
from redis_server import WITHOUT_PERSISTENCE, Settings, new_folder, private_server, start_new


class Certificate(NamedTuple):
    """A certificate that is signed with its own key, so it is also the authority to check it with."""

    certificate: Path
    key: Path


class TlsServer(NamedTuple):
    port: int
    password: str
    certificate: Certificate

    def url(self, host: str = "127.0.0.1") -> str:
        return f"rediss://:{self.password}@{host}:{self.port}/0"


def make_certificate(folder: Path, name: str = "server") -> Certificate:
    """A certificate for 127.0.0.1 and localhost, made by the command `openssl`."""
    openssl = shutil.which("openssl")
    if openssl is None:
        raise RuntimeError("The tests of TLS make their certificates with openssl. Install it: `apt install openssl`.")
    made = Certificate(folder / f"{name}.crt", folder / f"{name}.key")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    names = ("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    subprocess.run(
        [openssl, "req", "-x509", *curve, *names, "-days", "2", "-out", made.certificate, "-keyout", made.key],
        check=True,
        capture_output=True,
    )
    return made


@contextmanager
def tls_server(folder: Path, *, client_authority: Path | None = None) -> Iterator[TlsServer]:
    """A new server. `client_authority`: it demands a certificate of its clients that this authority has signed."""
    certificate = make_certificate(folder)
    able = [binary for binary in find_all() if binary.tls]
    if not able:
        with (
            private_server(WITHOUT_PERSISTENCE) as server,
            _decrypting(server.port, certificate, client_authority) as port,
        ):
            yield TlsServer(port, server.password, certificate)
        return
    port = free_port()
    settings: Settings = WITHOUT_PERSISTENCE | {
        "tls-port": port,
        "tls-cert-file": certificate.certificate,
        "tls-key-file": certificate.key,
        "tls-ca-cert-file": client_authority or certificate.certificate,
        "tls-auth-clients": "yes" if client_authority else "no",
    }
    with start_new(able[-1], new_folder(able[-1]), settings) as server:
        yield TlsServer(port, server.password, certificate)


@contextmanager
def _decrypting(target: int, certificate: Certificate, client_authority: Path | None) -> Iterator[int]:
    """Listen with TLS and forward to the port `target` without it. Answers the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    if client_authority is not None:
        context.load_verify_locations(client_authority)
        context.verify_mode = ssl.CERT_REQUIRED
    loop, port = asyncio.new_event_loop(), free_port()
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while data := await reader.read(1 << 16):
                    writer.write(data)
                    await writer.drain()
        finally:
            writer.transport.abort()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(copy(reader, to_server), copy(from_server, writer))

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = loop.create_task(serve(reader, writer))
        tasks.add(task)

        def close(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            writer.transport.abort()

        # Not in the task: it may be cancelled before its first step.
        task.add_done_callback(close)

    async def run(ready: threading.Event, end: asyncio.Event) -> None:
        server = await asyncio.start_server(accepted, "127.0.0.1", port, ssl=context)
        ready.set()
        await end.wait()
        await close_listener(server)
        # More than once: a handshake that ends meanwhile starts a task.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others)
        await asyncio.sleep(0)  # aborted connections are closed in the next turn of the loop

    ready, end = threading.Event(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(run(ready, end)), name="tls", daemon=True)
    thread.start()
    assert ready.wait(30), "the decrypting thread does not listen"
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()
