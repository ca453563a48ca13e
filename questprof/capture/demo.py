r"""The text of the demo: Alice's Adventures in Wonderland, by Lewis Carroll (1865), in the public domain.

The Project Gutenberg e-text "Millennium Fulcrum Edition 2.9" as alice29.txt of the Canterbury corpus, which
brotli's source distribution on PyPI carries among its test data (tests/testdata), with line ends `\n` and
without the DOS end-of-file mark: `tr -d '\r\032' < alice29.txt`.
"""

from __future__ import annotations

from pathlib import Path

ALICE = Path(__file__).with_name("alice.txt")
ALICE_SHA256 = "99e53cbb0aeb274344a254733db996ca2d05d5fcd10fc0ca02d6966f2b2bc961"
