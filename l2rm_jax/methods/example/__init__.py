"""A method and its test, which `l2rm new method NAME` copies under the name of yours."""
