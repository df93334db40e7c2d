"""List the captions whose words change when sentences are split first.

python -m experiments.papers.tokens DIR [--splits=train,dev,test]

The authors' code splits a caption into sentences with NLTK's punkt model before it splits words. By
default (`data.split_sentences=False`) we treat a caption as one sentence, so that the vocabulary
does not depend on an installed model. The results differ where a full stop touches a word and more
text follows, because only the last word of a sentence loses its full stop.

With the model (`python -m nltk.downloader punkt_tab`) the list is exact. Without it, every mark
that could end a sentence counts as its end, so the list holds every caption that could change.
"""

import argparse
from collections.abc import Callable

from nltk.tokenize.punkt import PunktSentenceTokenizer

from experiments.papers.sweep import start
from l2rm_jax.data.captions import read_captions
from l2rm_jax.data.text import load_sentence_splitter, tokenize
from l2rm_jax.errors import ConfigError


class SplitEverywhere(PunktSentenceTokenizer):
    """Splits sentences wherever any punkt model could."""

    def text_contains_sentbreak(self, text: str) -> bool:
        return True


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("path", help="directory with {split}_caps.txt or .tsv")
    parser.add_argument("--splits", default="train,dev,test", help="splits, with commas")
    arguments = parser.parse_args()
    try:
        sentences, verb = load_sentence_splitter(), "change"
    except ConfigError:
        sentences, verb = SplitEverywhere().tokenize, "could change (punkt is not installed)"
    for split in arguments.splits.split(","):
        captions = read_captions(arguments.path, split)
        changed = changed_captions(captions, sentences)
        print(f"{split}: {len(changed)} of {len(captions)} captions {verb}")
        for line, (whole, parts) in changed.items():
            print(f"  {line}: {' '.join(whole)}\n  {' ' * len(str(line))}  {' '.join(parts)}")


def changed_captions(
    captions: list[str], sentences: Callable[[str], list[str]]
) -> dict[int, tuple[list[str], list[str]]]:
    """Return the captions that differ, by line number from 1.

    A value holds the words of the caption as one sentence, and as several sentences.
    """
    words = ((tokenize(caption), tokenize(caption, sentences)) for caption in captions)
    return {line: pair for line, pair in enumerate(words, 1) if pair[0] != pair[1]}


if __name__ == "__main__":
    start(main)
