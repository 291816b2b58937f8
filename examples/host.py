"""A whole host program for colibri-engine, standard library only: all prompts are answered at the
same time over one pair of pipes. docs/protocol.md describes every line that goes over them.

  MODEL=$(python3 -c 'from colibri.models import demo_folder; print(demo_folder())')
  python3 examples/host.py "$MODEL" "Once upon a time" "The little bird"
"""

import subprocess
import sys

READY = b"\x01\x01READY\x01\x01\n"


def records(pipe):
    """Yields each record of the engine as its words and, for DATA, the payload."""
    for line in pipe:
        words = line.decode("utf-8", "replace").split()
        is_data = words[:1] == ["DATA"]
        yield words, pipe.read(int(words[2]) + 1)[:-1] if is_data else b""


def main(model, prompts):
    """Prints the answers; returns the exit code or what went wrong."""
    if any(prompt.encode(errors="ignore").decode() != prompt for prompt in prompts):
        return "error: a prompt is not UTF-8"
    command = ["colibri-engine", "--mux", "--model", model, "--slots", str(len(prompts))]
    try:
        engine = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as error:
        return f"error: cannot start {command[0]}, which comes with colibri: {error.strerror}"
    # Other engines print a banner first: everything before READY is skipped.
    while (line := engine.stdout.readline()) != READY:
        if not line:
            return "error: the engine ended before it was ready"

    for slot, prompt in enumerate(prompts):
        header = f"SUBMIT {slot + 1} {slot} {len(prompt.encode())} 60 0.7 0.9\n"
        engine.stdin.write(f"{header}{prompt}\n".encode())
    # At the end of its input the engine finishes what runs and exits.
    engine.stdin.close()

    answers = {str(slot + 1): b"" for slot in range(len(prompts))}
    ended = dict.fromkeys(answers, "error: an answer is missing")
    for words, payload in records(engine.stdout):
        match words:
            case ["DATA", request, _]:
                answers[request] += payload
            case ["DONE", request, "STAT", tokens, speed, *_]:
                ended[request] = 0
                text = answers[request].decode("utf-8", "replace")
                print(f"{prompts[int(request) - 1]}{text}\n  [{tokens} tokens, {speed} a second]\n")
            case ["ERROR", request, code, *detail]:
                ended[request] = 1
                print(f"request {request} failed: {code} {' '.join(detail)}", file=sys.stderr)
            # Kinds that this program does not know or need (telemetry) are skipped.
    return engine.wait() or next(filter(None, ended.values()), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]) if 3 <= len(sys.argv) <= 18 else __doc__)
