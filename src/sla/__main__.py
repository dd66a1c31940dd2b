"""`python -m sla`."""

from sla.cli import main

if __name__ == "__main__":
    main()
