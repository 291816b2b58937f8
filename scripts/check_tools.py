"""Checks that the tools this project builds with are there, and says how to get those that are not.

Runs on any Python 3, since the one at hand may be too old.
"""

import re
import shutil
import subprocess
import sys

TOOLS = [
    # command, version argument, least version, what it is, where it comes from
    ("cargo", "--version", (1, 89), "Rust", "https://rustup.rs"),
    ("node", "--version", (20, 19), "Node.js", "https://nodejs.org"),
    ("npm", "--version", (9, 0), "npm", "comes with Node.js: https://nodejs.org"),
]
PYTHON = (3, 11)


def problem(command, argument, least, name, source):
    """Returns what is wrong with a tool, or None."""
    wanted = "%s %s or newer" % (name, ".".join(map(str, least)))
    if shutil.which(command) is None:
        return "%s is needed and `%s` was not found; get it from %s" % (wanted, command, source)
    output = subprocess.run(
        [command, argument], stdout=subprocess.PIPE, check=False
    ).stdout.decode()
    found = re.search(r"(\d+)\.(\d+)", output)
    if found is None or tuple(map(int, found.groups())) < least:
        return "%s is needed, this is %s; get it from %s" % (wanted, output.strip(), source)
    return None


def main():
    """Prints one line for each tool that is missing; the exit code says whether any is."""
    problems = [text for text in (problem(*tool) for tool in TOOLS) if text]
    if sys.version_info < PYTHON:
        problems.append(
            "Python 3.11 or newer is needed, this is %s; get it from https://www.python.org "
            "and run make with PYTHON=python3.12, say" % sys.version.split()[0]
        )
    for text in problems:
        sys.stderr.write("error: %s\n" % text)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
