"""Memory and compilation of programs, on this machine and on absent ones."""
