#!/usr/bin/env bash
# Runs `questprof ci` with the inputs of the action (QP_* variables), tells the outputs of the step, and ends
# as exit.sh maps its status. For bash 3.2 on, which macOS has: an empty array is no word there.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
output=${QP_OUTPUT:-questprof/ci.html}
case ${output##*/} in
?*.*) stem=${output%.*} ;;
*) stem=$output ;;
esac
verdict=$stem.json
log=$stem.log
# stop SENTENCE: nothing is run, as the inputs cannot be.
stop() {
    printf 'status=2\nsentence=%s\n' "$1" >>"${GITHUB_OUTPUT:-/dev/null}"
    bash "$here/exit.sh" 2 "$1"
    exit 2
}
if ! { mkdir -p "$(dirname "$output")" && : >"$verdict"; }; then stop "the input output: cannot write $verdict"; fi

arguments=()
add() { if [ -n "$2" ]; then arguments+=("$1" "$2"); fi; }
# The lines of $1 that hold something, without carriage returns and the blanks about them.
lines() { printf '%s\n' "$1" | tr -d '\r' | sed -e 's/^[[:blank:]]*//' -e 's/[[:blank:]]*$//' -e '/^$/d'; }
# The words of $1, one a line: lines and blanks part them, quotes and backslashes as in a shell.
words() { if [ -n "$(lines "$1")" ]; then lines "$1" | xargs -n 1 printf '%s\n'; fi; }

add --shape "${QP_SHAPE:-}"
add --traffic "${QP_TRAFFIC:-}"
add --batch "${QP_BATCH:-}"
add --lengths "${QP_LENGTHS:-}"
add --budget "${QP_BUDGET:-}"
add --device "${QP_DEVICE:-}"
add --time "${QP_TIME:-}"
add --threshold "${QP_THRESHOLD:-}"
while IFS= read -r kernel; do add --kernel "$kernel"; done <<<"$(lines "${QP_KERNELS:-}")"
while IFS= read -r file; do
    if [ -z "$file" ]; then continue; fi
    if [ -f "$file" ]; then
        add --baseline "$file"
    else
        echo "::notice title=questprof::no baseline at $file yet: nothing is compared with it"
    fi
done <<<"$(lines "${QP_BASELINE:-}")"
arguments+=(--output "$output" --force --json)
more=$(words "${QP_OPTIONS:-}") || stop "the input options: a quote in it does not end"
while IFS= read -r word; do if [ -n "$word" ]; then arguments+=("$word"); fi; done <<<"$more"

summary=${GITHUB_STEP_SUMMARY:-/dev/null}
# What the job summary is as yet, in bytes: questprof ci adds to it at the end of a run that it judges.
summarised() { cat "$summary" 2>/dev/null | wc -c; }
before=$(summarised)

questprof ci "${arguments[@]}" 2>&1 >"$verdict" | tee "$log" >&2
status=${PIPESTATUS[0]}

# Outputs of the step: fields of the verdict, and where there is none the last that was said.
python=$(command -v python3 || command -v python) ||
    echo "::warning title=questprof::this runner has no python to read $verdict with: the outputs are empty"
field() {
    if [ -z "$python" ]; then return; fi
    "$python" - "$verdict" "$1" <<'END'
import json, sys
try:
    found = json.load(open(sys.argv[1], encoding="utf-8")).get(sys.argv[2])
except (AttributeError, OSError, ValueError):
    found = None
text = json.dumps(found) if isinstance(found, bool) else "" if found is None else str(found)
print(" ".join(text.split()))
END
}
found=$(field verdict)
sentence=$(field sentence)
if [ -z "$found$sentence" ]; then sentence=$(lines "$(tail -n 3 "$log")"); fi
next_baseline=$(field next_baseline)
# A status that lets a job pass counts with the verdict that it stands for: code of a kernel can end the
# process with any status, before there is a verdict.
case $status:$found in
0:pass | 4:inconclusive) ;;
0:* | 4:*)
    why="code that it ran, as a kernel, may have ended its process"
    if [ -z "$python" ]; then why="this runner has no python to read it with"; fi
    said=${sentence:+. It said last: $sentence}
    sentence="the run ended without a verdict (exit status $status${found:+, but $found in the document}): $why$said"
    status=1
    next_baseline=
    ;;
esac
# Why the job fails, in its summary, where questprof ci did not come to add one.
if [ "$status" != 0 ] && [ "$status" != 4 ] && [ "$(summarised)" = "$before" ]; then
    case $status in
    1) heading=fail ;;
    3) heading="cannot run here" ;;
    *) heading="stopped (exit status $status)" ;;
    esac
    # Fenced, as what was said is no Markdown.
    printf '## questprof ci: %s\n\n~~~text\n%s\n~~~\n' "$heading" "${sentence:-it says no reason}" >>"$summary"
fi
{
    echo "status=$status"
    echo "verdict=$found"
    echo "sentence=$(printf '%s' "$sentence" | tr '\n' ' ')"
    echo "next_baseline=$next_baseline"
    echo "profile=$stem-sweep.jsonl"
    echo "files=$stem*.json*"
} >>"${GITHUB_OUTPUT:-/dev/null}"

bash "$here/exit.sh" "$status" "$sentence"
