import sys

from phenogroups.cli import main

sys.exit(main())
