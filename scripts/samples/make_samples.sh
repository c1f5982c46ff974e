#!/bin/bash
# Everything under samples/, from nothing: make_samples.sh PYTHON SAMPLES_FOLDER. About 15 minutes on 2 cores.
# PYTHON has torch==2.15.0, diffusers==0.42.1, safetensors and numpy.
set -euo pipefail
python=$1
out=$2
cd "$(dirname "$0")"
export_case() { "$python" export_case.py "$@" 2>&1 | { grep -v "should be kept" || true; }; }

mlp=$out/mlp_tp2
mkdir -p "$mlp"
for case in mlp_tp2 mlp_tp2_sp mlp_tp2_inplace mlp_tp2_hashgroup; do
    for rank in 0 1; do export_case "$case" "$rank" "$mlp" --core --functional; done
    "$python" run_gloo.py "$case" "$mlp" --faults
done

cp8=$out/ltx2_tiny_cp8
mkdir -p "$cp8"
export_case ltx2_tiny_cp8 0 "$cp8" --strip
"$python" run_gloo.py ltx2_tiny_cp8 "$cp8" --faults

cp4tp2=$out/ltx23_tiny_cp4tp2
mkdir -p "$cp4tp2"
for rank in 0 1 2 3 4 5 6 7; do export_case ltx23_tiny_cp4tp2 "$rank" "$cp4tp2" --strip; done
"$python" deflate_pt2.py "$cp4tp2"/*.pt2
"$python" run_gloo.py ltx23_tiny_cp4tp2 "$cp4tp2" --faults
