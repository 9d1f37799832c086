"""`python -m lyapflow`, the same as the command `lyapflow`."""

from .cli import main

if __name__ == "__main__":
    main()
