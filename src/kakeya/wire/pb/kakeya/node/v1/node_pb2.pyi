from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetFleetRequest(_message.Message):
    __slots__ = ("plan", "role", "model_id")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    plan: bool
    role: int
    model_id: str
    def __init__(self, plan: _Optional[bool] = ..., role: _Optional[int] = ..., model_id: _Optional[str] = ...) -> None: ...

class GetOverviewRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetOverviewResponse(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class OfferedModel(_message.Message):
    __slots__ = ("model_id", "role", "quantization", "tokens_per_second")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    role: int
    quantization: str
    tokens_per_second: float
    def __init__(self, model_id: _Optional[str] = ..., role: _Optional[int] = ..., quantization: _Optional[str] = ..., tokens_per_second: _Optional[float] = ...) -> None: ...

class FleetNode(_message.Message):
    __slots__ = ("node_id", "grpc_address", "age_s", "ttl_s", "reachable", "platform", "memory_bytes", "mlx_version", "models", "clock_skew_s", "conflict_address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    GRPC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    REACHABLE_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MLX_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_SKEW_S_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    grpc_address: str
    age_s: float
    ttl_s: float
    reachable: bool
    platform: str
    memory_bytes: int
    mlx_version: str
    models: _containers.RepeatedCompositeFieldContainer[OfferedModel]
    clock_skew_s: float
    conflict_address: str
    def __init__(self, node_id: _Optional[str] = ..., grpc_address: _Optional[str] = ..., age_s: _Optional[float] = ..., ttl_s: _Optional[float] = ..., reachable: _Optional[bool] = ..., platform: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., mlx_version: _Optional[str] = ..., models: _Optional[_Iterable[_Union[OfferedModel, _Mapping]]] = ..., clock_skew_s: _Optional[float] = ..., conflict_address: _Optional[str] = ...) -> None: ...

class GetFleetResponse(_message.Message):
    __slots__ = ("self_node_id", "fleet_name", "nodes", "plan_lines", "version")
    SELF_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    FLEET_NAME_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    PLAN_LINES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    self_node_id: str
    fleet_name: str
    nodes: _containers.RepeatedCompositeFieldContainer[FleetNode]
    plan_lines: _containers.RepeatedScalarFieldContainer[str]
    version: str
    def __init__(self, self_node_id: _Optional[str] = ..., fleet_name: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[FleetNode, _Mapping]]] = ..., plan_lines: _Optional[_Iterable[str]] = ..., version: _Optional[str] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class Count(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: int
    def __init__(self, value: _Optional[int] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("text", "messages", "prompt_ids", "raw", "max_tokens", "stop", "plain", "draft_on", "num_drafts", "kv_mode", "temperature", "top_p", "top_k", "min_p", "seed", "exact", "kv_sink", "kv_window", "proposer", "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    PLAIN_FIELD_NUMBER: _ClassVar[int]
    DRAFT_ON_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    KV_MODE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    KV_SINK_FIELD_NUMBER: _ClassVar[int]
    KV_WINDOW_FIELD_NUMBER: _ClassVar[int]
    PROPOSER_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    text: str
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    raw: bool
    max_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    plain: bool
    draft_on: str
    num_drafts: int
    kv_mode: str
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    exact: str
    kv_sink: Count
    kv_window: Count
    proposer: str
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    def __init__(self, text: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., prompt_ids: _Optional[_Iterable[int]] = ..., raw: _Optional[bool] = ..., max_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., plain: _Optional[bool] = ..., draft_on: _Optional[str] = ..., num_drafts: _Optional[int] = ..., kv_mode: _Optional[str] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., exact: _Optional[str] = ..., kv_sink: _Optional[_Union[Count, _Mapping]] = ..., kv_window: _Optional[_Union[Count, _Mapping]] = ..., proposer: _Optional[str] = ..., repetition_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ...) -> None: ...

class GenerateEvent(_message.Message):
    __slots__ = ("text", "ids", "block", "done")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    text: str
    ids: _containers.RepeatedScalarFieldContainer[int]
    block: Block
    done: Done
    def __init__(self, text: _Optional[str] = ..., ids: _Optional[_Iterable[int]] = ..., block: _Optional[_Union[Block, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ...) -> None: ...

class Block(_message.Message):
    __slots__ = ("num_drafts", "num_accepted", "proposer", "drafted_on")
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PROPOSER_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_ON_FIELD_NUMBER: _ClassVar[int]
    num_drafts: int
    num_accepted: int
    proposer: str
    drafted_on: str
    def __init__(self, num_drafts: _Optional[int] = ..., num_accepted: _Optional[int] = ..., proposer: _Optional[str] = ..., drafted_on: _Optional[str] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("finish_reason", "prompt_len", "prefill_s", "decode_s", "fallbacks", "margin_rechecks", "model_id", "cached_tokens", "backend")
    class FallbacksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LEN_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_S_FIELD_NUMBER: _ClassVar[int]
    FALLBACKS_FIELD_NUMBER: _ClassVar[int]
    MARGIN_RECHECKS_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    finish_reason: str
    prompt_len: int
    prefill_s: float
    decode_s: float
    fallbacks: _containers.ScalarMap[str, int]
    margin_rechecks: int
    model_id: str
    cached_tokens: int
    backend: str
    def __init__(self, finish_reason: _Optional[str] = ..., prompt_len: _Optional[int] = ..., prefill_s: _Optional[float] = ..., decode_s: _Optional[float] = ..., fallbacks: _Optional[_Mapping[str, int]] = ..., margin_rechecks: _Optional[int] = ..., model_id: _Optional[str] = ..., cached_tokens: _Optional[int] = ..., backend: _Optional[str] = ...) -> None: ...
