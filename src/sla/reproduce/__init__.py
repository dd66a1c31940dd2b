"""The paper as data, and the machine that runs it again."""
