# SPDX-License-Identifier: Apache-2.0
"""An engine that reads requests from stdin, a JSON object a line, and answers each on stdout."""
import json
import os
import sys

if "KILL" in os.environ:
    import killer  # noqa: F401


def serve(started, operations):
    """started(folder, options) makes the engine, operations[do](engine, **request) answers.
    Returns the engine at the end of stdin."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what engines print is no answer

    def say(**what):
        print(json.dumps(what), file=answers, flush=True)

    try:
        engine = started(sys.argv[1], json.loads(sys.argv[2]))
        say(ready=os.getpid())
        for line in sys.stdin:
            request = json.loads(line)
            say(done=operations[request.pop("do")](engine, **request))
    except BaseException as error:
        say(failed=str(error))
        raise
    return engine
