# SPDX-License-Identifier: Apache-2.0
"""Prefill in one engine, decode in another, both on one kvtrunkd: a proxy for OpenAI servers.

    proxy.py PREFILL DECODE [PORT]      as http://127.0.0.1:8001 http://127.0.0.1:8002 8000

The first engine gets each request for one token. What it computes lies in the pool that both share,
so the second computes at most a page of the prompt, and the answer.
"""
import http.server
import json
import sys
import urllib.error
import urllib.request

PREFILL, DECODE = sys.argv[1:3]


class Proxy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.forward(DECODE)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        first = json.loads(body)
        for name in ("max_completion_tokens", "min_tokens", "n", "stream", "stream_options"):
            first.pop(name, None)
        with self.ask(PREFILL, json.dumps({**first, "max_tokens": 1}).encode()) as answer:
            answer.read()
        self.forward(DECODE, body)  # also what the first refused: it says the same

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
    port = int(sys.argv[3]) if len(sys.argv) > 3 else 8000
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Proxy).serve_forever()
