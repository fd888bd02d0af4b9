#!/usr/bin/env python3
"""Writes the tiny random models of the reference cases. The files have the same bytes on every machine.

    scripts/reference/make_models.py FOLDER                        # every case: FOLDER/CASE.gguf
    scripts/reference/make_models.py FOLDER --mutations            # and CASE.MUTATION.gguf, CASE.saved.gguf, ...
    scripts/reference/make_models.py FOLDER --only 'qwen2|gemma3'  # only cases whose whole name matches
    scripts/reference/make_models.py FOLDER --check tests/models/references

tests/models/references contains the expected logits. A mutation changes one property of the model in the file,
such as a bias, a norm, the window or the kind of rope. A mutation must change the logits. CASE.saved has the keys of a
file that llama.cpp has saved, and CASE.ollama has the names and keys of Ollama's files. Both files must give the same
logits as CASE. --check fails if a reference was made from a different model file.
"""

import argparse
import hashlib
import pathlib
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from measuring import python  # noqa: E402

if __name__ == "__main__":
    python.use_packages("make_models", "gguf", "numpy")

import gguf  # noqa: E402

from cases import CASES  # noqa: E402


def check(model, reference):
    """Exits with an error if the reference was made from a file with other bytes."""
    try:
        wanted = gguf.GGUFReader(reference).fields["reference.sha256"].contents()
    except (OSError, KeyError, ValueError) as error:
        sys.exit(f"make_models.py: cannot check {model.name} with {reference}: {error}")
    if hashlib.sha256(model.read_bytes()).hexdigest() != wanted:
        sys.exit(f"make_models.py: {reference} was made from a file other than {model}; run make_references.py again")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="folder to write the models to")
    parser.add_argument("--mutations", action="store_true", help="also write the mutations of each case")
    parser.add_argument("--only", default=".*", metavar="PATTERN",
                        help="regular expression that must match the whole name of a case")
    parser.add_argument("--check", type=pathlib.Path, metavar="REFERENCES",
                        help="folder with references; the script fails if a reference belongs to another model file")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    chosen = [case for case in CASES if re.fullmatch(args.only, case.name)]
    if not chosen:
        sys.exit(f"make_models.py: no case is called {args.only}; cases: {', '.join(case.name for case in CASES)}")
    for case in chosen:
        model = args.folder / f"{case.name}.gguf"
        case.write(model)
        if args.check:
            check(model, args.check / model.name)
        for name, mutation in (case.files() | case.same()).items() if args.mutations else ():
            case.write(args.folder / f"{case.name}.{name}.gguf", mutation)


if __name__ == "__main__":
    main()
