#!/usr/bin/python3
"""What llguidance, another compiler of schemas, says to texts.

grammar_peer.py FILE   FILE has lines {"schema", "text"}; prints "yes", "no" or "refused" (of the schema), a line each; or
                       one line "skipped: WHY" where llguidance can not be had from PyPI. It is put into a virtual
                       environment under build/ once.
"""
import json
import os
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", "peer-venv")
PYTHON = os.path.join(ROOT, "bin", "python")
VERSION = "llguidance==1.9.1"


def install():
    """Null when all is there, else why not."""
    quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    have = [PYTHON, "-c", "import llguidance"]
    try:
        if os.path.exists(PYTHON) and subprocess.run(have, **quiet).returncode == 0:
            return None
        subprocess.run([sys.executable, "-m", "venv", ROOT], check=True, timeout=60, **quiet)
        subprocess.run([PYTHON, "-m", "pip", "install", "-q", VERSION], check=True, timeout=120, **quiet)
        return None
    except (OSError, subprocess.SubprocessError) as error:
        return f"{VERSION} cannot be installed: {error}".replace("\n", " ")


def judge(path):
    from llguidance import LLMatcher, LLTokenizer
    tokenizer = LLTokenizer("byte")
    grammars = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            schema = json.dumps(row["schema"])
            if schema not in grammars:
                try:
                    grammars[schema] = LLMatcher.grammar_from_json_schema(schema)
                except ValueError:
                    grammars[schema] = None
            matcher = LLMatcher(tokenizer, grammars[schema]) if grammars[schema] else None
            if matcher is None or matcher.is_error():
                print("refused")
                continue
            tokens = tokenizer.tokenize_str(row["text"])
            whole = matcher.try_consume_tokens(tokens) == len(tokens)
            print("yes" if whole and matcher.is_accepting() else "no")


if __name__ == "__main__":
    if "--judge" in sys.argv:
        judge(sys.argv[-1])
    elif (why := install()) is not None:
        print("skipped:", why)
    else:
        sys.exit(subprocess.run([PYTHON, os.path.abspath(__file__), "--judge", sys.argv[1]], check=False).returncode)
