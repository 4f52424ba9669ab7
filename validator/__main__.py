"""`python -m validator` is `validator`."""

from validator.cli import main

if __name__ == "__main__":
    main()
