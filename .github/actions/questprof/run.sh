#!/usr/bin/env bash
# Runs `questprof ci` with the inputs of the action (QP_* variables), tells the outputs of the step, and ends
# as exit.sh maps its status.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
output=${QP_OUTPUT:-questprof/ci.html}
verdict=${output%.*}.json
mkdir -p "$(dirname "$output")"

arguments=()
add() { if [ -n "$2" ]; then arguments+=("$1" "$2"); fi; }
add --shape "${QP_SHAPE:-}"
add --traffic "${QP_TRAFFIC:-}"
add --batch "${QP_BATCH:-}"
add --lengths "${QP_LENGTHS:-}"
add --budget "${QP_BUDGET:-}"
add --device "${QP_DEVICE:-}"
add --time "${QP_TIME:-}"
add --threshold "${QP_THRESHOLD:-}"
while IFS= read -r kernel; do add --kernel "$kernel"; done <<<"${QP_KERNELS:-}"
while IFS= read -r file; do
    if [ -z "$file" ]; then continue; fi
    if [ -f "$file" ]; then
        add --baseline "$file"
    else
        echo "::notice title=questprof::no baseline at $file yet: nothing is compared with it"
    fi
done <<<"${QP_BASELINE:-}"
read -ra more <<<"${QP_OPTIONS:-}"

questprof ci "${arguments[@]}" --output "$output" --force --json "${more[@]}" >"$verdict"
status=$?

field() {
    python - "$verdict" "$1" <<'END' 2>/dev/null || true
import json, sys
print(" ".join(str(json.load(open(sys.argv[1], encoding="utf-8"))[sys.argv[2]]).split()))
END
}
sentence=$(field sentence)
{
    echo "status=$status"
    echo "verdict=$(field verdict)"
    echo "sentence=$sentence"
    echo "profile=${output%.*}-sweep.jsonl"
    echo "files=${output%.*}*.json*"
} >>"${GITHUB_OUTPUT:-/dev/null}"

bash "$here/exit.sh" "$status" "$sentence"
