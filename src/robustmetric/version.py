"""The version of the package, for its commands, which may not import the package's front."""

VERSION = "0.1.0"
