"""Captions whose words depend on whether sentences are split first.

python -m experiments.tokens DIR [--splits=train,dev,test]

The authors' code splits a caption into sentences by NLTK's punkt model before it splits words; by
default (`data.split_sentences`) we take a caption for one sentence, so that the vocabulary does not
depend on what is installed. The two differ where a full stop touches a word and more text follows:
only the last word of a sentence loses its full stop.

With the model (`python -m nltk.downloader punkt_tab`) the list is exact. Without it, every mark
that could end a sentence is taken for its end: whatever the model, no other caption changes.
"""

import argparse
from collections.abc import Callable

from nltk.tokenize.punkt import PunktSentenceTokenizer

from experiments.sweep import start
from l2rm_jax.data.captions import read_captions
from l2rm_jax.data.text import punkt, tokenize
from l2rm_jax.errors import ConfigError


class EveryEnd(PunktSentenceTokenizer):
    """Ends a sentence wherever a punkt model could."""

    def text_contains_sentbreak(self, text: str) -> bool:
        return True


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("path", help="directory with {split}_caps.txt or .tsv")
    parser.add_argument("--splits", default="train,dev,test", help="a,b,...")
    arguments = parser.parse_args()
    try:
        sentences, verb = punkt(), "change"
    except ConfigError:
        sentences, verb = EveryEnd().tokenize, "could change (punkt is not installed)"
    for split in arguments.splits.split(","):
        captions = read_captions(arguments.path, split)
        changed = changes(captions, sentences)
        print(f"{split}: {len(changed)} of {len(captions)} captions {verb}")
        for line, (whole, parts) in changed.items():
            print(f"  {line}: {' '.join(whole)}\n  {' ' * len(str(line))}  {' '.join(parts)}")


def changes(
    captions: list[str], sentences: Callable[[str], list[str]]
) -> dict[int, tuple[list[str], list[str]]]:
    """Words of the captions that differ, as one sentence and as several, by line (1 = first)."""
    words = ((tokenize(caption), tokenize(caption, sentences)) for caption in captions)
    return {line: pair for line, pair in enumerate(words, 1) if pair[0] != pair[1]}


if __name__ == "__main__":
    start(main)
