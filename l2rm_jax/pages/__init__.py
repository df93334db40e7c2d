"""Pages: HTML files that need no server and no network.

* `search` writes the page of a search, with pictures and matched words.
* `gallery` writes the page of an audit, on which a person decides.
* `markup` has their common parts: escaped texts, and the policy that lets only their own code run;
  `thumbnails` makes small pictures.

May import `judging`, `data` and the rooms below them.
"""

from l2rm_jax.pages.gallery import Gallery, write_gallery
from l2rm_jax.pages.search import PageAlignment, PageHit, PageQuery, write_page

__all__ = ["Gallery", "PageAlignment", "PageHit", "PageQuery", "write_gallery", "write_page"]
