#!/bin/bash
# One node of a run over several, where no scheduler starts them: this line on every node, with its own NODE_RANK.
#
#   NNODES=2 NODE_RANK=0 MASTER=node0:29500 clusters/torchrun_node.sh pre_train_t5.py t5_v1_1_base_24h.yaml
#   NNODES=2 NODE_RANK=1 MASTER=node0:29500 clusters/torchrun_node.sh pre_train_t5.py t5_v1_1_base_24h.yaml
#
# MASTER is the node of rank 0, at a port that is free there and open to the others. PROCESSES: GPUs of a node.
set -euo pipefail
: "${NNODES:?how many nodes}" "${NODE_RANK:?which of them, from 0}" "${MASTER:?HOST:PORT of node 0}"
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-3600}
exec python -m torch.distributed.run --nnodes "$NNODES" --node_rank "$NODE_RANK" \
    --master_addr "${MASTER%:*}" --master_port "${MASTER##*:}" --nproc_per_node "${PROCESSES:-gpu}" "$@"
