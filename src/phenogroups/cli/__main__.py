import sys

from phenogroups.cli import main

if __name__ == "__main__":  # the reference of the site imports every module
    sys.exit(main())
