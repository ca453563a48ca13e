#!/usr/bin/env bash
# install.sh REQUIREMENT: pip installs it into the python of the job, or, where the system manages that one,
# into an environment of its own, which the steps that follow find first.
set -euo pipefail

stop() {
    echo "::error title=questprof not installed::$1"
    exit 2
}

python=$(command -v python || command -v python3) ||
    stop "this runner has no python: put actions/setup-python before this action"
managed=$("$python" -c '
import os, sys, sysconfig
marker = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
print("yes" if sys.prefix == sys.base_prefix and os.path.exists(marker) else "no")')
if [ "$managed" = yes ]; then
    environment=${RUNNER_TEMP:-/tmp}/questprof-environment
    "$python" -m venv --system-site-packages "$environment" ||
        stop "$python makes no environment: install python3-venv, or put actions/setup-python before this action"
    echo "$environment/bin" >>"$GITHUB_PATH"
    python=$environment/bin/python
fi
"$python" -m pip install --quiet "$1"
