# Installation; see scripts/ and the package test.
