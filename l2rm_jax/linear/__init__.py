"""Linear models in closed form, and the vectors that they are fitted to.

* `cca` fits two sides to each other.
* `set_features` turns the regions of an image into one vector, `word_features` the words of a
  caption; `directions` finds their leading directions.
* `rows` reads vectors in blocks.

May import nothing else of the package.
"""
