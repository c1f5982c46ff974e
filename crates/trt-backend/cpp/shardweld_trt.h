/* The C ABI between Rust and TensorRT's C++ API: one table of functions per library flavour.
 *
 * shardweld_trt.cpp is compiled once against the TensorRT headers and once against the TensorRT-RTX headers; each
 * copy exports exactly one symbol that returns its table. Neither copy links against a TensorRT library: the
 * library's entry point is handed to `create`.
 *
 * Conventions. Functions that add a layer return the new tensor's number (0, 1, 2, ... in call order) or -1; all other
 * functions return 0 or -1. After -1, `last_error` says what was refused; the library's own lines went to the log
 * callback. Pointers given to a function are only read during the call, except the bytes of `add_constant`,
 * which must stay until `build` has returned. */
#ifndef SHARDWELD_TRT_H
#define SHARDWELD_TRT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Most dimensions a TensorRT tensor may have. */
#define SWT_MAX_DIMS 8

typedef struct SwtSession SwtSession;

typedef struct SwtDims {
    int32_t nb_dims;
    int64_t d[SWT_MAX_DIMS];
} SwtDims;

/* Axis orders, as `IShuffleLayer` takes them. */
typedef struct SwtPermutation {
    int32_t order[SWT_MAX_DIMS];
} SwtPermutation;

typedef enum SwtDataType {
    SWT_DTYPE_FLOAT,
    SWT_DTYPE_HALF,
    SWT_DTYPE_BF16,
    SWT_DTYPE_INT8,
    SWT_DTYPE_INT32,
    SWT_DTYPE_INT64,
    SWT_DTYPE_BOOL,
    SWT_DTYPE_UINT8,
    SWT_DTYPE_FP8
} SwtDataType;

typedef enum SwtUnary {
    SWT_UNARY_EXP,
    SWT_UNARY_LOG,
    SWT_UNARY_SQRT,
    SWT_UNARY_RECIP,
    SWT_UNARY_ABS,
    SWT_UNARY_NEG,
    SWT_UNARY_SIN,
    SWT_UNARY_COS,
    SWT_UNARY_TAN,
    SWT_UNARY_SINH,
    SWT_UNARY_COSH,
    SWT_UNARY_ASIN,
    SWT_UNARY_ACOS,
    SWT_UNARY_ATAN,
    SWT_UNARY_CEIL,
    SWT_UNARY_FLOOR,
    SWT_UNARY_ERF,
    SWT_UNARY_NOT,
    SWT_UNARY_SIGN,
    SWT_UNARY_ROUND,
    SWT_UNARY_ISINF,
    SWT_UNARY_ISNAN
} SwtUnary;

typedef enum SwtElementWise {
    SWT_ELEMENTWISE_SUM,
    SWT_ELEMENTWISE_PROD,
    SWT_ELEMENTWISE_MAX,
    SWT_ELEMENTWISE_MIN,
    SWT_ELEMENTWISE_SUB,
    SWT_ELEMENTWISE_DIV,
    SWT_ELEMENTWISE_POW,
    SWT_ELEMENTWISE_FLOOR_DIV,
    SWT_ELEMENTWISE_AND,
    SWT_ELEMENTWISE_OR,
    SWT_ELEMENTWISE_XOR,
    SWT_ELEMENTWISE_EQUAL,
    SWT_ELEMENTWISE_GREATER,
    SWT_ELEMENTWISE_LESS
} SwtElementWise;

typedef enum SwtActivation {
    SWT_ACTIVATION_RELU,
    SWT_ACTIVATION_SIGMOID,
    SWT_ACTIVATION_TANH,
    SWT_ACTIVATION_GELU_ERF,
    SWT_ACTIVATION_GELU_TANH
} SwtActivation;

typedef enum SwtReduce {
    SWT_REDUCE_SUM,
    SWT_REDUCE_PROD,
    SWT_REDUCE_MAX,
    SWT_REDUCE_MIN,
    SWT_REDUCE_AVG,
    SWT_REDUCE_NONE
} SwtReduce;

typedef enum SwtCollective {
    SWT_COLLECTIVE_ALL_REDUCE,
    SWT_COLLECTIVE_ALL_GATHER,
    SWT_COLLECTIVE_BROADCAST,
    SWT_COLLECTIVE_REDUCE,
    SWT_COLLECTIVE_REDUCE_SCATTER,
    SWT_COLLECTIVE_ALL_TO_ALL,
    SWT_COLLECTIVE_GATHER,
    SWT_COLLECTIVE_SCATTER
} SwtCollective;

typedef enum SwtCausal { SWT_CAUSAL_NONE, SWT_CAUSAL_UPPER_LEFT, SWT_CAUSAL_LOWER_RIGHT } SwtCausal;

typedef enum SwtProgressKind { SWT_PROGRESS_START, SWT_PROGRESS_STEP, SWT_PROGRESS_FINISH } SwtProgressKind;

/* Severity is TensorRT's: 0 internal error, 1 error, 2 warning, 3 info, 4 verbose. May be called from any thread. */
typedef void (*SwtLogFn)(void* user, int32_t severity, const char* message);

/* `parent` is null except at the start of a nested phase; `step` is the number of steps at the start of a phase and
 * the step done after that. The answer counts only after SWT_PROGRESS_STEP: 0 cancels the build. Any thread. */
typedef int32_t (*SwtProgressFn)(
    void* user, SwtProgressKind kind, const char* phase, const char* parent, int32_t step);

/* What the library exports as `createInferBuilder_INTERNAL`. */
typedef void* (*SwtCreateBuilderFn)(void* logger, int32_t version);

/* A collective: everything the layer needs, so that no half-made layer exists at any time. */
typedef struct SwtCollectiveDesc {
    SwtCollective op;
    SwtReduce reduce;
    /* Global rank for rooted collectives, -1 for all others. */
    int64_t root;
    const int64_t* ranks;
    int64_t nb_ranks;
} SwtCollectiveDesc;

typedef struct SwtConvolutionDesc {
    int64_t nb_output_maps;
    int64_t nb_groups;
    SwtDims kernel, stride, pre_padding, post_padding, dilation;
} SwtConvolutionDesc;

typedef struct SwtBuildOptions {
    /* Such as 80 or 120; 0 builds for the GPU of this machine. Flavours without ahead-of-time builds refuse others. */
    int32_t compute_capability;
    /* Builder threads, at least 1. */
    int32_t max_threads;
    /* May be null. */
    SwtProgressFn progress;
    void* progress_user;
} SwtBuildOptions;

/* One flavour of the binding. */
typedef struct SwtApi {
    /* Version of the headers this copy was compiled against. */
    int32_t header_major, header_minor, header_patch, header_build;

    /* `version` is the library's own version number; the library refuses one that it does not serve. Null on failure. */
    SwtSession* (*create)(SwtCreateBuilderFn entry, int32_t version, SwtLogFn log, void* log_user);
    void (*destroy)(SwtSession*);
    const char* (*last_error)(const SwtSession*);

    int32_t (*add_input)(SwtSession*, const char* name, SwtDataType, const SwtDims*);
    int32_t (*add_constant)(
        SwtSession*, const char* name, SwtDataType, const SwtDims*, const void* data, int64_t count);
    int32_t (*add_cast)(SwtSession*, const char* name, int32_t input, SwtDataType);
    int32_t (*add_unary)(SwtSession*, const char* name, int32_t input, SwtUnary);
    int32_t (*add_elementwise)(SwtSession*, const char* name, int32_t a, int32_t b, SwtElementWise);
    int32_t (*add_activation)(SwtSession*, const char* name, int32_t input, SwtActivation);
    int32_t (*add_select)(SwtSession*, const char* name, int32_t condition, int32_t then_input, int32_t else_input);
    int32_t (*add_matmul)(
        SwtSession*, const char* name, int32_t a, int32_t transpose_a, int32_t b, int32_t transpose_b);
    int32_t (*add_reduce)(
        SwtSession*, const char* name, int32_t input, SwtReduce, uint32_t axes, int32_t keep_dims);
    int32_t (*add_softmax)(SwtSession*, const char* name, int32_t input, uint32_t axis_mask);
    int32_t (*add_normalization)(SwtSession*, const char* name, int32_t input, int32_t scale, int32_t bias,
        uint32_t axes, float epsilon);
    /* `mask` is -1 for none. */
    int32_t (*add_attention)(SwtSession*, const char* name, int32_t query, int32_t key, int32_t value, int32_t mask,
        SwtCausal, int32_t decomposable);
    /* `reshape` may be null. Order: first transpose, reshape, second transpose. */
    int32_t (*add_shuffle)(SwtSession*, const char* name, int32_t input, const SwtPermutation* first,
        const SwtDims* reshape, const SwtPermutation* second);
    /* `fill` is -1 for strict bounds, else a scalar tensor that out-of-bounds positions read. */
    int32_t (*add_slice)(SwtSession*, const char* name, int32_t input, const SwtDims* start, const SwtDims* size,
        const SwtDims* stride, int32_t fill);
    int32_t (*add_concat)(SwtSession*, const char* name, const int32_t* inputs, int32_t nb_inputs, int32_t axis);
    /* `elements`: single elements instead of whole slices. */
    int32_t (*add_gather)(
        SwtSession*, const char* name, int32_t data, int32_t indices, int32_t axis, int32_t elements);
    /* `bias` is -1 for none. */
    int32_t (*add_convolution)(SwtSession*, const char* name, int32_t input, int32_t kernel, int32_t bias,
        SwtDataType, const SwtConvolutionDesc*);
    int32_t (*add_collective)(SwtSession*, const char* name, int32_t input, const SwtCollectiveDesc*);

    int32_t (*mark_output)(SwtSession*, int32_t tensor, const char* name);
    int32_t (*tensor_type)(SwtSession*, int32_t tensor, SwtDataType* dtype, SwtDims* dims);
    int32_t (*nb_layers)(const SwtSession*);
    /* The engine's bytes belong to the session. */
    int32_t (*build)(SwtSession*, const SwtBuildOptions*, const void** data, size_t* size);
} SwtApi;

const SwtApi* shardweld_trt_api(void);
const SwtApi* shardweld_trt_rtx_api(void);

#ifdef __cplusplus
}
#endif
#endif
