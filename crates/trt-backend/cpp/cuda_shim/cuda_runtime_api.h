/* The only two CUDA names that TensorRT's headers mention. Lets the shim compile on a machine without CUDA;
 * nothing here is ever called, so opaque handles are enough. */
#ifndef SHARDWELD_CUDA_SHIM_H
#define SHARDWELD_CUDA_SHIM_H

struct CUstream_st;
struct CUevent_st;
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;

#endif
