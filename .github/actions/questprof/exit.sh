#!/usr/bin/env bash
# exit.sh STATUS [SENTENCE]: what a job should see of the exit status of questprof, as an annotation and as
# an exit status. Inconclusive (4) is a neutral notice: noise on a runner fails nobody's change.
status=$1
sentence=${2:-}
sentence=${sentence//'%'/'%25'}
sentence=${sentence//$'\r'/'%0D'}
sentence=${sentence//$'\n'/'%0A'}

case $status in
0)
    if [ -n "$sentence" ]; then echo "::notice title=questprof passed::$sentence"; fi
    exit 0
    ;;
1)
    echo "::error title=questprof failed::${sentence:-a check failed, or the change is slower}"
    exit 1
    ;;
3)
    echo "::error title=questprof cannot run here::${sentence:-this runner cannot measure; questprof doctor says why}"
    exit 3
    ;;
4)
    echo "::notice title=questprof inconclusive::${sentence:-undecided or unstable}"
    exit 0
    ;;
*)
    echo "::error title=questprof stopped::${sentence:-it says no reason} (exit status $status)"
    exit "$status"
    ;;
esac
