#!/usr/bin/env bash
# mypy --strict over the product, its tests, its benchmarks and what both use; arguments go to mypy.
#
# In the checkout pipelines/ lies beside sparkring/, in the installed package inside it (docs/adr/0001-import-layout.md), and no
# static checker follows that mapping. So the package is laid out by links in build/typecheck, and checked there; messages
# name the real files. An editor finds the same types with build/typecheck on its search path.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tree=build/typecheck
rm -rf "$tree"
mkdir -p "$tree/sparkring"
for entry in sparkring/*.py sparkring/py.typed sparkring/cli sparkring/estimator sparkring/notebook conf models pipelines spark_jobs; do
    ln -s "../../../$entry" "$tree/sparkring/"
done
for entry in harness tests benchmarks; do
    ln -s "../../$entry" "$tree/"
done

cd "$tree"
mypy --config-file ../../pyproject.toml -p sparkring -p harness -p tests -p benchmarks "$@" |
    sed -E 's#^sparkring/(conf|models|pipelines|spark_jobs)/#\1/#'
