"""How a program of PyTorch's is talked to: one JSON object a line, each answered with one."""

import json
import sys


def serve(answer):
    """answer(request) gives what is printed; what it raises, of a library, a compiler or a device, is {"error": …}.

    The answers have standard output to themselves: what libraries print goes elsewhere.
    """
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        try:
            found = answer(json.loads(line))
        except Exception as error:
            words = str(error).strip().splitlines()
            found = {"error": f"{type(error).__name__}: {words[0] if words else 'no message'}"}
        print(json.dumps(found), file=answers, flush=True)
