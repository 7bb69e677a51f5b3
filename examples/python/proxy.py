# SPDX-License-Identifier: Apache-2.0
"""Prefill in one engine, decode in another, both on one kvtrunkd: a proxy for OpenAI servers.

The first engine gets each request for one token. Its KV lies in the pool that both share,
so the second computes at most a page of the prompt, and the answer.
"""
import argparse
import http.server
import json
import urllib.error
import urllib.request

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("prefill", help="as http://127.0.0.1:8001")
parser.add_argument("decode", help="as http://127.0.0.1:8002")
parser.add_argument("port", type=int, nargs="?", default=8000, help="of this proxy (8000)")


class Proxy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.forward(arguments.decode)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        first = json.loads(body)
        for name in ("max_completion_tokens", "min_tokens", "n", "stream", "stream_options"):
            first.pop(name, None)
        with self.ask(arguments.prefill, json.dumps({**first, "max_tokens": 1}).encode()) as answer:
            answer.read()
        self.forward(arguments.decode, body)  # also what the first refused: it says the same

    def ask(self, server, body):
        request = urllib.request.Request(server + self.path, data=body)
        for name in ("Authorization", "Content-Type"):
            if name in self.headers:
                request.add_header(name, self.headers[name])
        try:
            return urllib.request.urlopen(request)
        except urllib.error.HTTPError as refused:
            return refused  # it has a status and a body, as any answer
        except urllib.error.URLError as error:
            self.send_error(502, f"{server} does not answer: {error.reason}")
            raise

    def forward(self, server, body=None):
        with self.ask(server, body) as answer:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers["Content-Type"] or "text/plain")
            self.end_headers()
            while piece := answer.read1():  # a stream, as it comes
                self.wfile.write(piece)


if __name__ == "__main__":
    arguments = parser.parse_args()
    http.server.ThreadingHTTPServer(("127.0.0.1", arguments.port), Proxy).serve_forever()
