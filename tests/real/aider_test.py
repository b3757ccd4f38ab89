"""Aider, as people install it, edits a file in a git repository through `sluice serve`. The model says one script, an edit in
the form that Aider asks for: small models do not write such forms.
"""
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import made_models
import support

EDIT = """I will greet by name.

hello.py
```python
<<<<<<< SEARCH
def hello():
    print("hello")
=======
def hello(name):
    print(f"hello, {name}")
>>>>>>> REPLACE
```
"""


class Aider(unittest.TestCase):
    def test_aider_edit(self):
        with tempfile.TemporaryDirectory() as folder:
            model, tree = Path(folder) / "edit.gguf", Path(folder) / "tree"
            made_models.of_script(model, EDIT)
            tree.mkdir()
            (tree / "hello.py").write_text('def hello():\n    print("hello")\n')
            env = os.environ | {"HOME": folder, "OPENAI_API_BASE": "", "OPENAI_API_KEY": "none", "AIDER_ANALYTICS": "false",
                                "GIT_CONFIG_NOSYSTEM": "1"}

            def git(*arguments):
                return subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments], cwd=tree,
                                      env=env, check=True, capture_output=True, text=True).stdout

            git("init", "-q")
            git("config", "user.name", "t")
            git("config", "user.email", "t@example.org")
            git("add", "."), git("commit", "-qm", "hello")
            with support.serving("-m", model, "-c", "16384", "--alias", "edit") as address:
                aider = Path(os.path.dirname(os.sys.executable)) / "aider"
                out = subprocess.run([aider, "--model", "openai/edit", "--openai-api-base", address + "/v1", "--yes-always",
                                      "--edit-format", "diff", "--no-check-update", "--no-show-release-notes", "--no-pretty",
                                      "--no-show-model-warnings", "--no-analytics", "--map-tokens", "0", "--no-suggest-shell-commands",
                                      "--commit-prompt", "Say what changed.", "--message", "Greet by name.", "hello.py"],
                                     cwd=tree, env=env | {"OPENAI_API_BASE": address + "/v1"}, capture_output=True, text=True,
                                     timeout=900, stdin=subprocess.DEVNULL)
            self.assertEqual(out.returncode, 0, out.stdout + out.stderr)
            self.assertEqual((tree / "hello.py").read_text(), 'def hello(name):\n    print(f"hello, {name}")\n',
                             out.stdout + out.stderr)
            self.assertEqual(git("status", "--porcelain", "--untracked-files=no"), "", "Aider commits its edit")
            self.assertEqual(len(git("log", "--oneline").splitlines()), 2)


if __name__ == "__main__":
    support.main("aider")
