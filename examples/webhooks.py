"""Webhooks in order, with a pool: each customer gets the events one after the other, even if a delivery fails.

    python examples/webhooks.py

A pool has a fixed number of lanes. The customer is the key, and all jobs of a key are in the same lane, where one job
runs at a time. A delivery that fails holds its lane until it succeeds, so that no customer gets "paid" before "placed".
Customers in other lanes do not wait. The receiver is a web server on this machine that refuses the first delivery of
some events.
"""

import tempfile
import threading
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from holdfast import App, Context, Retry, fixed

CUSTOMERS = ("ada", "bob", "cleo", "dora", "emil")
EVENTS = ("placed", "paid", "packed", "shipped")

jobs = App(f"sqlite:///{tempfile.mkdtemp(prefix='webhooks-')}/jobs.db")


@dataclass(frozen=True)
class Webhook:
    url: str
    customer: str
    event: str


hooks = jobs.pool("webhooks", Webhook, lanes=4, max_depth=10_000)


@hooks.handler(max_attempts=10, backoff=fixed(0.05))
def deliver(ctx: Context, hook: Webhook) -> int:
    headers = {"Idempotency-Key": ctx.job.id, "Attempt": str(ctx.attempt)}
    request = urllib.request.Request(f"{hook.url}/{hook.customer}", hook.event.encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as reply:
            status: int = reply.status
            return status
    except urllib.error.HTTPError as error:
        with error:
            raise Retry(f"answered {error.code}") from error  # the next job of this lane waits


@contextmanager
def receiver() -> Iterator[tuple[str, dict[str, list[str]], list[str]]]:
    """A server that lists the accepted events per customer, and refuses the first delivery of every "paid"."""
    accepted: dict[str, list[str]] = defaultdict(list)
    refused: list[str] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            customer, event = self.path.strip("/"), self.rfile.read(int(self.headers["Content-Length"])).decode()
            busy = event == "paid" and self.headers["Attempt"] == "1"
            if busy:
                refused.append(customer)
            else:
                accepted[customer].append(event)
            self.send_response(503 if busy else 200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", accepted, refused
        server.shutdown()


def main() -> None:
    with receiver() as (url, accepted, refused), jobs, jobs.worker(concurrency=8):
        drafts = [hooks.draft(Webhook(url, who, event), key=who) for event in EVENTS for who in CUSTOMERS]
        for handle in jobs.client.enqueue_many(drafts):
            handle.result(timeout=30)
        status = hooks.status()

    print(f"delivered {status.processed}, refused {len(refused)}, failed {status.failed}")
    for customer in CUSTOMERS:
        print(f"{customer}: {' '.join(accepted[customer])}")


if __name__ == "__main__":
    main()

# It prints:
#   delivered 20, refused 5, failed 0
#   ada: placed paid packed shipped
#   bob: placed paid packed shipped
#   cleo: placed paid packed shipped
#   dora: placed paid packed shipped
#   emil: placed paid packed shipped
