"""trtllm: TensorRT-LLM's attention for inference on GPUs, table only."""

from stripectl.core.table_only import table_only_kernel
from stripectl.kernels.cudnn import about as cudnn

about = table_only_kernel("trtllm", "https://github.com/NVIDIA/TensorRT-LLM", like=cudnn)
