#!/usr/bin/env bash
# What a GPU can tell, in parts of at most ten minutes, on a machine that may have no network:
#
#   benchmarks/gpu.sh pack      here, with a network: wheels, text, GLUE and a vocabulary into build/pack (under 64 MiB)
#   benchmarks/gpu.sh runs      does it run: bf16, eager and compiled, killed and resumed, answers and labels
#   benchmarks/gpu.sh speed     steps, the loss and an evaluation against peers (H1, H4, L, H5); ceilings; precisions
#   benchmarks/gpu.sh paths     each fast path off and on, in steps and evaluations (P1, P2, P3)
#   benchmarks/gpu.sh before    the same measurements by an older tree in $BEFORE, for paths that are gone
#   benchmarks/gpu.sh profile   where the time of a step of pre-training goes
#   benchmarks/gpu.sh real      $MINUTES of pre-training, then SST-2 and MRPC against a scratch twin
#   DEVICE=cpu benchmarks/gpu.sh runs        any part at toy size
#
# Every part writes JSON into $OUT as soon as a figure is known, so that a part cut off loses the running figure alone.
# PYTHON brings its own torch; what it lacks comes from build/pack, beside it.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
PYTHON=${PYTHON:-python3} DEVICE=${DEVICE:-cuda} OUT=${OUT:-build/gpu} PACK=${PACK:-build/pack} MINUTES=${MINUTES:-6}
REPETITIONS=${REPETITIONS:-7}
# What the machine lacks, or has of an older version; constraints.txt has the versions.
WHEELS=${WHEELS:-absl-py accelerate datasets dill evaluate huggingface_hub multiprocess peft rouge_score sacrebleu safetensors \
  shtab tokenizers transformers zstandard}
SITE=${SITE:-/tmp/t5suite-site}
TEXT=${TEXT:-$PACK/text} GLUE=${GLUE:-$PACK} TOKENIZER=${TOKENIZER:-$PACK/tokenizer}
failed=0

pack() {  # SOURCE is a folder with text/, glue/ and tokenizer/t5/
  mkdir -p "$PACK/wheels"
  local name version platforms=()
  for n in 39 35 34 31 28 27 24 17; do platforms+=(--platform "manylinux_2_${n}_x86_64"); done
  platforms+=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)
  for name in $WHEELS; do
    version=$(grep -iE "^${name//_/[-_]}==" constraints.txt | head -1)
    "$PYTHON" -m pip download -q --no-deps --only-binary=:all: --python-version "${PACK_PYTHON:-3.12}" --implementation cp \
      "${platforms[@]}" -d "$PACK/wheels" "${version:-$name}" 2>/dev/null \
      || "$PYTHON" -m pip wheel -q --no-deps -w "$PACK/wheels" "${version:-$name}" || failed=1  # no wheel: pure Python
  done
  if [[ -n ${SOURCE:-} ]]; then
    mkdir -p "$PACK/glue"
    cp -rL "$SOURCE/text" "$PACK/"
    cp -rL "$SOURCE/tokenizer/t5" "$PACK/tokenizer"
    for name in ${TASKS:-sst2 mrpc}; do cp -rL "$SOURCE/glue/$name" "$PACK/glue/"; done
  fi
  du -sh "$PACK"
}

prepare() {  # the wheels, once; then the versions that the figures belong to
  mkdir -p "$OUT"
  export PYTHONPATH="$PWD:$SITE:${PYTHONPATH:-}" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
  if [[ ! -d $SITE ]] && compgen -G "$PACK/wheels/*.whl" >/dev/null; then
    "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --target "$SITE" "$PACK"/wheels/*.whl || exit
  fi
  "$PYTHON" -c "import json; from benchmarks.harness import environment; print(json.dumps(environment('$DEVICE')))" \
    >"$OUT/environment.json" || exit
}

note() {  # note PART CASE COMMAND...: runs it, and adds a line to PART.jsonl
  local part=$1 case=$2 started=$SECONDS code=0
  shift 2
  if declare -F "$1" >/dev/null; then "$@"; else timeout -k 10 "${LIMIT:-280}" "$@"; fi >"$OUT/$part-$case.log" 2>&1 || code=$?
  printf '{"case": "%s", "exit": %d, "seconds": %d}\n' "$case" "$code" $((SECONDS - started)) | tee -a "$OUT/$part.jsonl"
  ((code)) && failed=1 && tail -n 15 "$OUT/$part-$case.log"
  return 0
}

if [[ $DEVICE == cuda ]]; then
  device=(--bf16 True) steps=50 every=25
  pre_train=(--config_name t5-v1_1-base --config_overrides vocab_size=32128 --inputs_length 512
             --per_device_train_batch_size 64)
  tune=(--config_name t5-v1_1-base --config_overrides vocab_size=32128 --per_device_train_batch_size 128)
else
  device=(--use_cpu True) steps=8 every=4
  tiny=(--config_name t5-v1_1-small --config_overrides d_model=32,d_kv=8,d_ff=64,num_heads=4,num_layers=2,num_decoder_layers=2)
  pre_train=("${tiny[@]}" --inputs_length 64 --per_device_train_batch_size 4)
  tune=("${tiny[@]}" --per_device_train_batch_size 4)
fi
common=(--max_steps "$steps" --logging_steps 5 --report_to none --disable_tqdm True --max_eval_samples 256)
pre_train=("$PYTHON" pre_train_t5.py "${pre_train[@]}" "${device[@]}" "${common[@]}" --optimizer adamw_rms)
tune=("$PYTHON" fine_tune_t5.py --benchmark mini --dataset_name entailment "${tune[@]}" "${device[@]}" "${common[@]}")

killed_and_resumed() {  # equal weights after a kill behind the first checkpoint and another start
  local whole=$OUT/work/whole broken=$OUT/work/broken
  local flags=(--save_strategy steps --save_steps "$every" --eval_strategy no)
  rm -rf "$whole" "$broken"
  "${tune[@]}" "${flags[@]}" --output_dir "$whole" || return
  "${tune[@]}" "${flags[@]}" --output_dir "$broken" &
  local run=$!
  until [[ -d $broken/checkpoint-$every ]] || ! kill -0 $run; do sleep 0.02; done
  kill -9 $run
  wait $run
  "${tune[@]}" "${flags[@]}" --resume auto --output_dir "$broken" || return
  cmp "$whole/model.safetensors" "$broken/model.safetensors"
}

runs() {
  local compiled
  for compiled in False True; do
    [[ $DEVICE == cpu && $compiled == True ]] && continue
    rm -rf "$OUT/work"
    note runs "pre_train-compile-$compiled" "${pre_train[@]}" --torch_compile $compiled --output_dir "$OUT/work/pre"
    note runs "fine_tune-answers-compile-$compiled" "${tune[@]}" --torch_compile $compiled --eval_method generate \
      --output_dir "$OUT/work/tune"
  done
  note runs labels "${tune[@]}" --eval_only --model_name_or_path "$OUT/work/tune" --eval_method score --output_dir "$OUT/work/score"
  note runs resume killed_and_resumed
}

measure() {  # measure PART MODULE [flags]: a benchmark's JSON, module by module
  local part=$1 module=$2
  shift 2
  note "$part" "$module" "$PYTHON" -m "benchmarks.$module" --device "$DEVICE" --json "$OUT/$part-$module.json" "$@"
}

speed() {
  "$PYTHON" -m benchmarks.ceilings --device "$DEVICE" >"$OUT/speed-ceilings.json"
  measure speed step --repetitions "$REPETITIONS"
  measure speed loss --repetitions "$REPETITIONS"
  measure speed evaluation --repetitions 3 --only H5
  measure speed precisions --only bf16 "bf16, compiled"
}

paths() {
  local work
  for work in P1 P2 P3 P3s; do measure "paths-$work" fast_paths --repetitions 3 --only $work; done
}

before() {  # the older tree's own modules: attention (H2), and the same steps with its flags
  local tree=${BEFORE:?the folder of an older tree; docs/log.md names the commit} module
  OUT=$(realpath "$OUT")
  cd "$tree" || exit
  export PYTHONPATH="$PWD:$SITE"
  for module in attention step evaluation; do measure before "$module" --repetitions 3; done
}

profile() {
  LIMIT=240 note profile pre_train "${pre_train[@]}" --profile 3:7 --eval_strategy no --save_strategy no --output_dir "$OUT/work/profile"
}

real() {  # in one piece: weights do not outlive it
  local text=("$TEXT")
  [[ $DEVICE == cpu ]] && MINUTES=0.2
  LIMIT=${LIMIT:-580} note real minutes "$PYTHON" -m benchmarks.pretrain_and_compare --device "$DEVICE" --minutes "$MINUTES" \
    --text "${text[@]}" --data_dir "$GLUE" --tokenizer "$TOKENIZER" --tasks ${TASKS:-sst2 mrpc} --seeds ${SEEDS:-1} \
    --output_dir "$OUT/work/real"
  cp "$OUT/work/real/results.json" "$OUT/real.json"
}

case ${1:-} in
  pack) pack ;;
  runs | speed | paths | before | profile | real) prepare && "$1" ;;
  *) sed -n '2,15s/^# \?//p' "${BASH_SOURCE[0]}" && exit 64 ;;
esac
rm -rf "$OUT/work"
exit $failed
