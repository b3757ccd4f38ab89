// The table of llama.cpp's flags: those of llama-cli and llama-server in 2026, and older ones that scripts
// still have.
#include "cli/llama_flags.h"

namespace sluice::cli {
namespace {

constexpr auto kNone = Takes::Nothing, kOne = Takes::Value, kTwo = Takes::Two, kSwitch = Takes::Switch;
constexpr auto kSame = Fate::Same, kOver = Fate::Over, kNo = Fate::Refused, kMeant = Fate::Meant;

constexpr const char* kPlacing = "--backend says where weights lie, --gpu-memory how many on a GPU";
constexpr const char* kRequests = "requests may hold one";
constexpr const char* kNoSampler =
    "there is no such sampler; temperature, top-k, top-p, min-p and penalties there are";
constexpr const char* kRope = "positions are as the file says";
constexpr const char* kDrafts =
    "drafts are looked up or made by the model's own block (--draft), no other model makes them";
constexpr const char* kPinning = "threads are placed by themselves; taskset narrows where";
constexpr const char* kMapping = "the file is mapped, and weights are packed into memory (--no-repack: not)";
constexpr const char* kPlainLog = "lines on standard error are as they are";
constexpr const char* kPictures = "models read text alone";
constexpr const char* kNoPreset = "name a model with -hf";

// clang-format off
constexpr LlamaFlag kFlags[] = {
    // The model, and where it comes from.
    {"-mu,--model-url", kOne, kEvery, kNo, "-hf USER/REPO fetches models of the hub"},
    {"-dr,--docker-repo", kOne, kEvery, kNo, "-hf USER/REPO fetches models of the hub"},
    {"-cl,--cache-list", kNone, kEvery, kMeant, ""},
    {"--version", kNone, kWithBench, kMeant, ""},
    {"--completion-bash", kNone, kEvery, kNo, ""},
    {"--list-devices", kNone, kWithBench, kNo, "`sluice devices` lists them"},
    {"--lora,--lora-scaled,--lora-base,--control-vector,--control-vector-scaled", kOne, kEvery, kNo, "adapters are not supported"},
    {"--control-vector-layer-range", kTwo, kEvery, kNo, "adapters are not supported"},
    {"--lora-init-without-apply", kNone, kEvery, kNo, "adapters are not supported"},
    {"--override-kv", kOne, kEvery, kNo, "the file is taken as it is"},
    {"--check-tensors", kNone, kEvery, kOver, "files are checked in any case"},
    {"--gpt-oss-20b-default,--gpt-oss-120b-default,--vision-gemma-4b-default,--vision-gemma-12b-default,--embd-gemma-default,"
     "--fim-qwen-1.5b-default,--fim-qwen-3b-default,--fim-qwen-7b-default,--fim-qwen-7b-spec,--fim-qwen-14b-spec,"
     "--fim-qwen-30b-default", kNone, kEvery, kNo, kNoPreset},
    {"-mm,--mmproj,-mmu,--mmproj-url,--image,--audio,--video,--image-min-tokens,--image-max-tokens,-mmdev,--mmproj-device,"
     "--mtmd-batch-max-tokens,--video-fps,--video-timestamp-interval,--video-ffmpeg-dir", kOne, kEvery, kNo, kPictures},
    {"--mmproj-auto,--no-mmproj,--no-mmproj-auto,--mmproj-offload,--no-mmproj-offload", kNone, kEvery, kOver, kPictures},

    // Where it runs.
    {"-ngl,--gpu-layers,--n-gpu-layers", kOne, kWithBench, kMeant, ""},
    {"-dev,--device", kOne, kWithBench, kNo, "--backend cpu, cuda or cuda:N chooses"},
    {"-mg,--main-gpu", kOne, kWithBench, kNo, "--backend cuda:N chooses", "0"},
    {"-sm,--split-mode", kOne, kWithBench, kNo, kPlacing, "none,layer"},
    {"-ts,--tensor-split,-ot,--override-tensor,--rpc,--moe-cache-mib,-ncffn,--n-cpu-ffn", kOne, kWithBench, kNo, kPlacing},
    {"-ncmoe,--n-cpu-moe", kOne, kWithBench, kNo, kPlacing, "0"},
    {"-cmoe,--cpu-moe,-nkvo,--no-kv-offload", kNone, kEvery, kNo, kPlacing},
    {"-kvo,--kv-offload,--op-offload,--no-op-offload,--no-host,-nopo", kNone, kEvery, kOver, kPlacing},
    {"-fit,--fit", kSwitch, kEvery, kOver, "memory is planned in any case"},
    {"-fitt,--fit-target,-fitc,--fit-ctx", kOne, kWithBench, kOver, "memory is planned in any case"},
    {"-tb,--threads-batch", kOne, kEvery, kOver, "-t is for prompts, too"},
    {"-C,--cpu-mask,-Cr,--cpu-range,-Cb,--cpu-mask-batch,-Crb,--cpu-range-batch", kOne, kWithBench, kNo, kPinning},
    {"--cpu-strict,--cpu-strict-batch,--prio,--prio-batch,--poll,--poll-batch,--numa", kOne, kWithBench, kOver, kPinning},
    {"--mlock,--mmap,--no-mmap,-dio,--direct-io,-ndio,--no-direct-io", kNone, kEvery, kOver, kMapping},
    {"-lm,--load-mode,-lzm,--lazy-mode", kOne, kWithBench, kOver, kMapping},
    {"--repack", kNone, kEvery, kOver, "it is the default"},
    {"-nr", kNone, kEvery, kSame, "--no-repack"},
    // llama-bench's have a value each.
    {"-fa,--flash-attn", kOne, kBench, kOver, "attention is always fused"},
    {"-mmp,--mmap,-dio,--direct-io", kOne, kBench, kOver, kMapping},
    {"--repack", kOne, kBench, kOver, "it is the default (--no-repack: not)"},
    {"-nopo,--no-op-offload,--no-host", kOne, kBench, kOver, kPlacing},
    {"-nkvo,--no-kv-offload", kOne, kBench, kNo, kPlacing, "0"},
    {"-embd,--embeddings", kOne, kBench, kNo, "models write text alone", "0"},
    {"-v,--verbose", kNone, kBench, kOver, kPlainLog},
    {"-fa,--flash-attn", kSwitch, kEvery, kOver, "attention is always fused"},
    {"-nfa,--no-flash-attn", kNone, kEvery, kOver, "attention is always fused"},
    {"-b,--batch-size,-ub,--ubatch-size", kOne, kTexts, kOver, "rows a step follow from the machine"},
    {"-b,--batch-size,-ub,--ubatch-size", kOne, kServe, kOver, "rows a step follow from the machine (--rows)"},
    {"-ctv,--cache-type-v", kOne, kWithBench, kMeant, ""},
    {"-dt,--defrag-thold,-cram,--cache-ram,-ctxcp,--ctx-checkpoints,--swa-checkpoints,-cms,--checkpoint-min-step,"
     "--kv-unified-per-slot,--cache-reuse", kOne, kEvery, kOver, "the cache is of pages, which prompts share (--cache-tokens of serve)"},
    {"-kvu,--kv-unified,-no-kvu,--no-kv-unified,--swa-full,--cache-prompt,--no-cache-prompt,--cache-idle-slots,"
     "--no-cache-idle-slots", kNone, kEvery, kOver, "the cache is of pages, which prompts share (--cache-tokens of serve)"},
    {"--keep", kOne, kEvery, kOver, "a context that is full ends the text"},
    {"--no-context-shift", kNone, kEvery, kOver, "a context that is full ends the text"},
    {"--context-shift", kNone, kEvery, kNo, "a context that is full ends the text"},
    {"--rope-scaling,--rope-scale,--rope-freq-base,--rope-freq-scale,--yarn-orig-ctx,--yarn-ext-factor,--yarn-attn-factor,"
     "--yarn-beta-slow,--yarn-beta-fast,-gan,--grp-attn-n,-gaw,--grp-attn-w", kOne, kEvery, kNo, kRope},
    {"--warmup,--no-warmup", kNone, kEvery, kOver, "there is nothing to switch"},
    {"--perf,--no-perf,--show-timings,--no-show-timings", kNone, kEvery, kOver, "times are told where they are"},

    // The text.
    {"--n-predict", kOne, kTexts, kSame, "--predict"},
    {"-n,--predict,--n-predict", kOne, kServe, kNo, "requests say how many tokens (max_tokens)", "-1"},
    {"-bf,--binary-file", kOne, kRun, kSame, "--file"},
    {"-bf,--binary-file", kOne, kChat, kNo, "`sluice run -f` reads files"},
    {"-p,--prompt,-f,--file", kOne, kChat, kNo, "messages are typed or piped; `sluice run --chat -p TEXT` answers one"},
    {"-sys,--system-prompt", kOne, kTexts, kMeant, ""},
    {"-sysf,--system-prompt-file", kOne, kTexts, kMeant, ""},
    {"-sys,--system-prompt,-sysf,--system-prompt-file", kOne, kServe, kNo, "requests hold it"},
    {"-cnv,--conversation", kNone, kRun, kSame, "--chat"},
    {"-cnv,--conversation", kNone, kChat, kOver, "it is the default"},
    {"-no-cnv,--no-conversation", kNone, kRun, kOver, "it is the default"},
    {"-no-cnv,--no-conversation", kNone, kChat, kNo, "`sluice run` continues a text"},
    {"-st,--single-turn", kNone, kRun, kSame, "--chat"},
    {"-st,--single-turn", kNone, kChat, kNo, "`sluice run --chat -p TEXT` answers one message"},
    {"-i,--interactive,-if,--interactive-first,-ins,--instruct", kNone, kTexts, kNo, "`sluice chat` is a conversation"},
    {"-r,--reverse-prompt", kOne, kTexts, kSame, "--stop"},
    {"-r,--reverse-prompt", kOne, kServe, kNo, "requests say where to stop (stop)"},
    {"-e,--escape", kNone, kEvery, kNo, "texts are taken as they are; a shell's $'a\\nb' writes line breaks"},
    {"--no-escape", kNone, kEvery, kOver, "texts are taken as they are"},
    {"-co,--color", kSwitch, kTexts, kOver, "colours follow from the terminal"},
    {"-mli,--multiline-input,--simple-io,--display-prompt,--no-display-prompt", kNone, kTexts, kOver, "there is nothing to switch"},
    {"--verbose-prompt", kNone, kEvery, kOver, "`sluice tokenize` shows tokens"},
    {"-sp,--special", kNone, kEvery, kNo, "control tokens are not printed"},
    {"-o,--output,--output-file", kOne, kTexts, kNo, "standard output is the text: > FILE"},
    {"--server-base", kOne, kTexts, kNo, "there is no client of a server"},
    {"--prompt-cache,--in-prefix,--in-suffix,--in-prefix-bos,-ptc,--print-token-count", kOne, kTexts, kNo, ""},
    {"-v,--verbose,--log-verbose", kNone, kRun | kServe, kOver, "serve has --log debug, run tells its statistics"},
    {"--log-verbose", kNone, kChat, kSame, "--verbose"},
    {"-lv,--verbosity,--log-verbosity", kOne, kEvery, kOver, kPlainLog},
    {"--log-disable", kNone, kTexts, kOver, kPlainLog},
    {"--log-disable", kNone, kServe, kMeant, ""},
    {"--log-file,--log-prompts-dir", kOne, kEvery, kNo, "lines are on standard error: 2> FILE"},
    {"--log-colors", kSwitch, kEvery, kOver, kPlainLog},
    {"--log-prefix,--no-log-prefix,--log-timestamps,--no-log-timestamps,--no-log-jsonl", kNone, kEvery, kOver, kPlainLog},
    {"--log-jsonl", kNone, kEvery, kNo, kPlainLog},

    // Sampling.
    {"--temperature", kOne, kEvery, kSame, "--temp"},
    {"--samplers,--sampler-seq,--sampling-seq", kOne, kEvery, kNo, kNoSampler},
    {"--ignore-eos", kNone, kEvery, kNo, "the end is the model's"},
    {"--top-nsigma,--top-n-sigma", kOne, kEvery, kNo, kNoSampler, "-1"},
    {"--xtc-probability,--dry-multiplier,--dynatemp-range,--mirostat", kOne, kEvery, kNo, kNoSampler, "0"},
    {"--typical,--typical-p", kOne, kEvery, kNo, kNoSampler, "1"},
    {"--adaptive-target", kOne, kEvery, kNo, kNoSampler, "-1"},
    {"--xtc-threshold,--dry-base,--dry-allowed-length,--dry-penalty-last-n,--dry-sequence-breaker,--adaptive-decay,"
     "--dynatemp-exp,--mirostat-lr,--mirostat-ent", kOne, kEvery, kOver, kNoSampler},
    {"-l,--logit-bias", kOne, kEvery, kNo, kRequests},
    {"--grammar,--grammar-file,-j,--json-schema,-jf,--json-schema-file", kOne, kEvery, kNo, kRequests},
    {"-bs,--backend-sampling", kNone, kEvery, kOver, "tokens are drawn where that is quickest"},

    // Templates and reasoning.
    {"--jinja", kNone, kEvery, kOver, "templates are always read as Jinja"},
    {"--no-jinja", kNone, kEvery, kNo, "templates are always read as Jinja"},
    {"--chat-template,--chat-template-file", kOne, kEvery, kNo, "the template is the file's"},
    {"--chat-template-kwargs", kOne, kEvery, kMeant, ""},
    {"--reasoning-format", kOne, kEvery, kNo, "reasoning is told apart from the answer", "auto,deepseek"},
    {"-rea,--reasoning", kOne, kEvery, kMeant, ""},
    {"--reasoning-effort", kOne, kEvery, kNo, kRequests, "default"},
    {"--reasoning-budget", kOne, kTexts, kNo, "--think off, or serve's --reasoning-budget", "-1"},
    {"--reasoning-budget-message", kOne, kEvery, kNo, "reasoning that is cut short ends with its tag alone"},
    {"--reasoning-preserve,--no-reasoning-preserve", kNone, kEvery, kOver, "it is the template's choice"},
    {"--skip-chat-parsing", kNone, kEvery, kNo, "answers are told apart from reasoning and calls"},
    {"--no-skip-chat-parsing", kNone, kEvery, kOver, "it is the default"},

    // Drafts.
    {"--draft-n,--spec-draft-n-max", kOne, kEvery, kSame, "--draft-max"},
    {"--spec-type", kOne, kEvery, kNo, kDrafts, "none,draft-mtp,ngram-simple,ngram-map-k,ngram-map-k4v,ngram-mod,ngram-cache"},
    {"--spec-default", kNone, kEvery, kOver, kDrafts},
    {"-md,--model-draft,--spec-draft-model,-hfd,-hfrd,--hf-repo-draft,--spec-draft-hf,-lcs,--lookup-cache-static,-lcd,"
     "--lookup-cache-dynamic,--spec-synth-len,--spec-synth-rates", kOne, kEvery, kNo, kDrafts},
    {"-td,--threads-draft,--spec-draft-threads,-tbd,--threads-batch-draft,--spec-draft-threads-batch,-Cd,--cpu-mask-draft,"
     "--spec-draft-cpu-mask,-Crd,--cpu-range-draft,--spec-draft-cpu-range,--cpu-strict-draft,--spec-draft-cpu-strict,"
     "--prio-draft,--spec-draft-prio,--poll-draft,--spec-draft-poll,-Cbd,--cpu-mask-batch-draft,--spec-draft-cpu-mask-batch,"
     "--cpu-strict-batch-draft,--spec-draft-cpu-strict-batch,--prio-batch-draft,--spec-draft-prio-batch,--poll-batch-draft,"
     "--spec-draft-poll-batch,-otd,--override-tensor-draft,--spec-draft-override-tensor,-ncmoed,--n-cpu-moe-draft,"
     "--spec-draft-n-cpu-moe,--spec-draft-ncmoe,-ctkd,--cache-type-k-draft,--spec-draft-type-k,-ctvd,--cache-type-v-draft,"
     "--spec-draft-type-v,-devd,--device-draft,--spec-draft-device,-ngld,--gpu-layers-draft,--n-gpu-layers-draft,"
     "--spec-draft-ngl,-cd,--ctx-size-draft", kOne, kEvery, kOver, kDrafts},
    {"-cmoed,--cpu-moe-draft,--spec-draft-cpu-moe,--spec-draft-backend-sampling,--no-spec-draft-backend-sampling", kNone, kEvery, kOver, kDrafts},
    {"--draft-min,--draft-n-min,--spec-draft-n-min,--draft-p-split,--spec-draft-p-split,--draft-p-min,--spec-draft-p-min,"
     "--spec-draft-sampling,--spec-ngram-mod-n-min,--spec-ngram-mod-n-max,--spec-ngram-mod-n-match,--spec-ngram-simple-size-n,"
     "--spec-ngram-simple-size-m,--spec-ngram-simple-min-hits,--spec-ngram-map-k-size-n,--spec-ngram-map-k-size-m,"
     "--spec-ngram-map-k-min-hits,--spec-ngram-map-k4v-size-n,--spec-ngram-map-k4v-size-m,--spec-ngram-map-k4v-min-hits,"
     "--spec-ngram-size-n,--spec-ngram-size-m,--spec-ngram-min-hits", kOne, kEvery, kOver, kDrafts},

    // The server.
    {"-np", kOne, kServe, kSame, "--parallel"},
    {"-np,--parallel,-ns,--sequences", kOne, kTexts, kOver, "one text at a time is written"},
    {"-cb,--cont-batching", kNone, kEvery, kOver, "requests always run together"},
    {"-nocb,--no-cont-batching", kNone, kEvery, kNo, "--parallel 1 runs one request at a time"},
    {"-a", kOne, kServe, kSame, "--alias"},
    {"--tags,-to,--timeout,--threads-http,-sps,--slot-prompt-similarity,--sse-ping-interval", kOne, kServe, kOver, "there is nothing to set"},
    {"--ssl-cert-file", kOne, kServe, kSame, "--tls-cert"},
    {"--ssl-key-file", kOne, kServe, kSame, "--tls-key"},
    {"--cors-origins", kOne, kServe, kSame, "--cors"},
    {"--cors-methods,--cors-headers", kOne, kServe, kNo, "--cors ORIGIN admits pages"},
    {"--cors-credentials", kNone, kServe, kNo, "--cors ORIGIN admits pages"},
    {"--no-cors-credentials", kNone, kServe, kOver, "it is the default"},
    {"--metrics,--slots", kNone, kServe, kOver, "the endpoint is always there"},
    {"--no-slots,--props", kNone, kServe, kNo, "--api-key-file says who may ask"},
    {"--ui,--webui,--no-ui,--no-webui,--no-ui-mcp-proxy,--no-webui-mcp-proxy,-no-ag,--no-agent", kNone, kServe, kOver, "the page at / is a file without a server's part"},
    {"--ui-mcp-proxy,--webui-mcp-proxy,-ag,--agent", kNone, kServe, kNo, "tools are clients' matter"},
    {"--tools,--tools-runtime,--mcp-servers-config,--mcp-servers-json", kOne, kServe, kNo, "tools are clients' matter"},
    {"--ui-config,--webui-config,--ui-config-file,--webui-config-file,--path,--api-prefix", kOne, kServe, kNo, "the page is as it is, and at /"},
    {"--reuse-port", kNone, kServe, kNo, ""},
    {"--embedding,--embeddings,--rerank,--reranking", kNone, kServe, kNo, "models write text alone"},
    {"--pooling,--embd-normalize", kOne, kServe, kNo, "models write text alone"},
    {"--spm-infill", kNone, kServe, kNo, "there is no infill"},
    {"--slot-save-path,--media-path,--models-preset", kOne, kServe, kNo, ""},
    {"--sleep-idle-seconds", kOne, kServe, kNo, "of several models --idle-unload SECONDS", "-1"},
    {"--models-autoload", kNone, kServe, kOver, "several models are loaded when requests name them"},
    {"--no-models-autoload", kNone, kServe, kNo, "several models are loaded when requests name them"},
    {"--prefill-assistant", kNone, kServe, kOver, "it is the default"},
    {"--no-prefill-assistant", kNone, kServe, kNo, "a last message of the assistant is gone on with"},
};
// clang-format on

}  // namespace

std::span<const LlamaFlag> llama_flags() { return kFlags; }

}  // namespace sluice::cli
