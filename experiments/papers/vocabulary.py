"""The vocabulary of all training captions, for runs that train on some of the images.

python -m experiments.papers.vocabulary DIR --out=vocabulary.json
l2rm --config=flickr8k --data=DIR --config.data.vocabulary=vocabulary.json
"""

from pathlib import Path

from experiments.script import new_parser, start
from l2rm_jax.config import default
from l2rm_jax.data.captions import read_captions
from l2rm_jax.data.text import Vocabulary, tokenize


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("path", type=Path, help="directory with train_caps.txt or .tsv")
    parser.add_argument("--out", required=True, type=Path, help="file to write")
    parser.add_argument("--min_count", type=int, default=default().data.min_count)
    flags = parser.parse_args()
    words = (tokenize(caption) for caption in read_captions(flags.path, "train"))
    vocabulary = Vocabulary.from_words(words, flags.min_count)
    vocabulary.write(flags.out)
    print(f"{flags.out}: {len(vocabulary)} words")


if __name__ == "__main__":
    start(main, prepare=False)
