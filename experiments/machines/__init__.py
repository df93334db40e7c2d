"""What a program needs of a machine: operations, memory, predicted times."""
