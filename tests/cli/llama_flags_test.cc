// llama.cpp's flags, every one that the help of llama-cli and llama-server listed in 2026: taken, passed over
// with a line, or refused by name, and never a value of another.
#include "cli/llama_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>
#include <sstream>

#include "base/error.h"
#include "cli/commands.h"
#include "support/command.h"

namespace sluice::cli {
namespace {

using test::CommandResult;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// Facts of llama.cpp's own help: flags by what follows them, of both programs and of one of them.
struct Listed {
  const char* program;  ///< "both", "cli" or "server"
  const char* follows;  ///< "", "N" (a value), "NN" (two), "on" (on, off or auto)
  const char* flags;
};

constexpr Listed kListed[] = {
    {"both", "",
     "-cl --cache-list --completion-bash --swa-full --perf --no-perf -e --escape --no-escape -kvo "
     "--kv-offload -nkvo "
     "--no-kv-offload --repack -nr --no-repack --no-host --mlock --mmap --no-mmap -dio --direct-io -ndio "
     "--no-direct-io "
     "--list-devices -cmoe --cpu-moe --check-tensors --op-offload --no-op-offload --log-disable --log-jsonl "
     "--no-log-jsonl -v --verbose --log-verbose --offline --log-prefix --no-log-prefix --log-timestamps "
     "--no-log-timestamps --ignore-eos -bs --backend-sampling --context-shift --no-context-shift -sp "
     "--special --warmup "
     "--no-warmup --mmproj-auto --no-mmproj --no-mmproj-auto --mmproj-offload --no-mmproj-offload --jinja "
     "--no-jinja "
     "--reasoning-preserve --no-reasoning-preserve --skip-chat-parsing --no-skip-chat-parsing "
     "--spec-draft-cpu-moe "
     "-cmoed --cpu-moe-draft --spec-draft-backend-sampling --no-spec-draft-backend-sampling "
     "--gpt-oss-20b-default "
     "--gpt-oss-120b-default --vision-gemma-4b-default --vision-gemma-12b-default --spec-default"},
    {"both", "on", "-fa --flash-attn -fit --fit --log-colors -rea --reasoning"},
    {"both", "NN", "--control-vector-layer-range"},
    {"both", "N",
     "-t --threads -tb --threads-batch -C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll -Cb "
     "--cpu-mask-batch -Crb "
     "--cpu-range-batch --cpu-strict-batch --prio-batch --poll-batch -c --ctx-size -n --predict --n-predict "
     "-b "
     "--batch-size -ub --ubatch-size --keep --rope-scaling --rope-scale --rope-freq-base --rope-freq-scale "
     "--yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast -ctk "
     "--cache-type-k -ctv "
     "--cache-type-v -dt --defrag-thold --rpc -lm --load-mode -lzm --lazy-mode --numa -dev --device -ot "
     "--override-tensor -ncmoe --n-cpu-moe --moe-cache-mib -ncffn --n-cpu-ffn -ngl --gpu-layers "
     "--n-gpu-layers -sm "
     "--split-mode -ts --tensor-split -mg --main-gpu -fitt --fit-target -fitc --fit-ctx --override-kv --lora "
     "--lora-scaled --control-vector --control-vector-scaled -m --model -mu --model-url -dr --docker-repo "
     "-hf -hfr "
     "--hf-repo -hff --hf-file -hft --hf-token --log-file -lv --verbosity --log-verbosity "
     "--spec-draft-type-k -ctkd "
     "--cache-type-k-draft --spec-draft-type-v -ctvd --cache-type-v-draft --samplers -s --seed --sampler-seq "
     "--sampling-seq --temp --temperature --top-k --top-p --min-p --top-nsigma --top-n-sigma "
     "--xtc-probability "
     "--xtc-threshold --typical --typical-p --repeat-last-n --repeat-penalty --presence-penalty "
     "--frequency-penalty "
     "--dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker "
     "--adaptive-target "
     "--adaptive-decay --dynatemp-range --dynatemp-exp --mirostat --mirostat-lr --mirostat-ent -l "
     "--logit-bias --grammar "
     "--grammar-file -j --json-schema -jf --json-schema-file -ctxcp --ctx-checkpoints --swa-checkpoints "
     "-cram "
     "--cache-ram -r --reverse-prompt -np --parallel -mm --mmproj -mmu --mmproj-url -mmdev --mmproj-device "
     "--image-min-tokens --image-max-tokens --chat-template-kwargs --reasoning-format --reasoning-effort "
     "--reasoning-budget --reasoning-budget-message --chat-template --chat-template-file --log-prompts-dir "
     "--spec-draft-hf -hfd -hfrd --hf-repo-draft --spec-draft-threads -td --threads-draft "
     "--spec-draft-threads-batch "
     "-tbd --threads-batch-draft --spec-draft-cpu-mask -Cd --cpu-mask-draft --spec-draft-cpu-range -Crd "
     "--cpu-range-draft --spec-draft-cpu-strict --cpu-strict-draft --spec-draft-prio --prio-draft "
     "--spec-draft-poll "
     "--poll-draft --spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft --spec-draft-cpu-strict-batch "
     "--cpu-strict-batch-draft --spec-draft-prio-batch --prio-batch-draft --spec-draft-poll-batch "
     "--poll-batch-draft "
     "--spec-draft-override-tensor -otd --override-tensor-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe "
     "-ncmoed "
     "--n-cpu-moe-draft --spec-draft-n-max --spec-draft-n-min --spec-draft-p-split --draft-p-split "
     "--spec-draft-p-min "
     "--draft-p-min --spec-draft-device -devd --device-draft --spec-draft-ngl -ngld --gpu-layers-draft "
     "--n-gpu-layers-draft --spec-draft-model -md --model-draft --spec-type --spec-ngram-mod-n-min "
     "--spec-ngram-mod-n-max --spec-ngram-mod-n-match --spec-ngram-simple-size-n --spec-ngram-simple-size-m "
     "--spec-ngram-simple-min-hits --spec-ngram-map-k-size-n --spec-ngram-map-k-size-m "
     "--spec-ngram-map-k-min-hits "
     "--spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits --draft "
     "--draft-n "
     "--draft-max --draft-min --draft-n-min"},
    {"cli", "",
     "--verbose-prompt --display-prompt --no-display-prompt --show-timings --no-show-timings -cnv "
     "--conversation -no-cnv "
     "--no-conversation -st --single-turn -mli --multiline-input --simple-io"},
    {"cli", "on", "-co --color"},
    {"cli", "N",
     "-p --prompt -f --file -bf --binary-file --server-base -sys --system-prompt -sysf --system-prompt-file "
     "--image "
     "--audio --video -o --output --output-file"},
    {"server", "",
     "-kvu --kv-unified -no-kvu --no-kv-unified --cache-idle-slots --no-cache-idle-slots --spm-infill -cb "
     "--cont-batching "
     "-nocb --no-cont-batching --reuse-port --cors-credentials --no-cors-credentials --ui-mcp-proxy "
     "--webui-mcp-proxy "
     "--no-ui-mcp-proxy --no-webui-mcp-proxy -ag --agent -no-ag --no-agent --ui --webui --no-ui --no-webui "
     "--embedding "
     "--embeddings --rerank --reranking --cache-prompt --no-cache-prompt --metrics --props --slots "
     "--no-slots "
     "--models-autoload --no-models-autoload --prefill-assistant --no-prefill-assistant "
     "--lora-init-without-apply "
     "--embd-gemma-default --fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default "
     "--fim-qwen-7b-spec "
     "--fim-qwen-14b-spec --fim-qwen-30b-default"},
    {"server", "N",
     "-lcs --lookup-cache-static -lcd --lookup-cache-dynamic --kv-unified-per-slot -cms "
     "--checkpoint-min-step --pooling "
     "--mtmd-batch-max-tokens --video-fps --video-timestamp-interval --video-ffmpeg-dir -a --alias --tags "
     "--embd-normalize --host --port --path --cors-origins --cors-methods --cors-headers --api-prefix "
     "--ui-config "
     "--webui-config --ui-config-file --webui-config-file --tools --tools-runtime --mcp-servers-config "
     "--mcp-servers-json --api-key --api-key-file --ssl-key-file --ssl-cert-file -to --timeout "
     "--sse-ping-interval "
     "--threads-http --cache-reuse --slot-save-path --media-path --models-dir --models-preset --models-max "
     "-sps "
     "--slot-prompt-similarity --sleep-idle-seconds --spec-synth-len --spec-synth-rates "
     "--spec-draft-sampling "
     "--spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits"},
};

class LlamaFlags : public testing::Test {
 protected:
  LlamaFlags() { add_commands(app); }

  std::vector<std::string> translated(const std::vector<std::string>& arguments) {
    told.clear();
    return translate_arguments(app, arguments, [this](const std::string& line) { told.push_back(line); });
  }
  std::string problem(const std::vector<std::string>& arguments) {
    try {
      translated(arguments);
      return "";
    } catch (const UsageError& error) {
      return error.what();
    }
  }

  CLI::App app{"", "sluice"};
  std::vector<std::string> told;
};

TEST_F(LlamaFlags, EachIsTakenPassedOverOrRefusedByName) {
  int flags = 0;
  for (const Listed& listed : kListed) {
    const std::string program = listed.program, follows = listed.follows;
    std::istringstream names(listed.flags);
    for (std::string flag; names >> flag; ++flags) {
      for (const char* command : {"run", "chat", "serve"}) {
        if (program == "cli" && std::string(command) == "serve") continue;
        if (program == "server" && std::string(command) != "serve") continue;
        std::vector<std::string> arguments{command, flag};
        if (follows == "NN") arguments.insert(arguments.end(), {"7", "7"});
        if (follows == "N")
          arguments.emplace_back(flag.starts_with("-hf") || flag == "--hf-repo" ? "a/b" : "7");
        if (follows == "on") arguments.emplace_back("on");
        arguments.emplace_back("--top-k");  // is ours, and nobody's value
        arguments.emplace_back("40");
        std::vector<std::string> out;
        try {
          out = translated(arguments);
        } catch (const UsageError& error) {
          EXPECT_EQ(std::string(error.what()).substr(0, flag.size()), flag) << error.what();
          continue;
        } catch (const Error& error) {  // a file that is not there
          EXPECT_THAT(error.what(), HasSubstr("7")) << flag;
          continue;
        }
        if (flag == "-cl" || flag == "--cache-list") {
          EXPECT_THAT(out, ElementsAre("list"));
          continue;
        }
        ASSERT_GE(out.size(), 3u) << flag;
        EXPECT_EQ(out[out.size() - 2] + out.back(), "--top-k40") << command << " " << flag;
        // What is left are flags of the command, each with as many values as it takes.
        const CLI::App& one = *app.get_subcommand(command);
        for (size_t i = 1; i < out.size(); ++i) {
          ASSERT_TRUE(out[i].starts_with("-")) << command << " " << flag << ": " << out[i];
          const CLI::Option* option = one.get_option_no_throw(out[i].substr(0, out[i].find('=')));
          ASSERT_NE(option, nullptr) << command << " " << flag << ": " << out[i];
          if (option->get_items_expected_max() > 0 && out[i].find('=') == std::string::npos) ++i;
        }
        const bool taken = out.size() > 3;
        if (!taken) {
          ASSERT_FALSE(told.empty()) << command << " " << flag;
          EXPECT_TRUE(told[0].starts_with(flag)) << told[0];
        }
      }
    }
  }
  EXPECT_GT(flags, 380);
}

TEST_F(LlamaFlags, RowsNameEachFlagOnceACommand) {
  for (const uint8_t command : {kRun, kChat, kServe, kBench}) {
    std::set<std::string> known;
    for (const LlamaFlag& row : llama_flags()) {
      if ((row.commands & command) == 0) continue;
      std::istringstream names(row.names);
      for (std::string name; std::getline(names, name, ',');) {
        EXPECT_TRUE(name.starts_with('-')) << name;
        EXPECT_TRUE(known.insert(name).second) << name;
      }
    }
  }
}

TEST_F(LlamaFlags, HaveTheirMeaning) {
  EXPECT_THAT(translated({"run", "--temperature", "0.5", "--n-predict", "9"}),
              ElementsAre("run", "--temp", "0.5", "--predict", "9"));
  EXPECT_THAT(translated({"serve", "-np", "2", "-a", "x"}),
              ElementsAre("serve", "--parallel", "2", "--alias", "x"));
  EXPECT_THAT(translated({"run", "-sys", "be brief", "-p", "hi"}),
              ElementsAre("run", "--system", "be brief", "--chat", "-p", "hi"));
  EXPECT_THAT(translated({"run", "-ctk", "q8_0", "-ctv", "q8_0"}), ElementsAre("run", "--ctk", "q8_0"));
  EXPECT_THAT(problem({"run", "-ctv", "q8_0"}),
              HasSubstr("-ctv q8_0: not supported: keys and values have one type"));
  EXPECT_THAT(translated({"chat", "-rea", "off", "-r", "User:"}),
              ElementsAre("chat", "--think", "off", "--stop", "User:"));
  EXPECT_THAT(translated({"run", "--chat-template-kwargs", R"({"enable_thinking":false})"}),
              ElementsAre("run", "--think", "off", "--chat"));
  EXPECT_THAT(problem({"run", "--chat-template-kwargs", R"({"a":1})"}), HasSubstr("--chat-template-kwargs"));
  EXPECT_THAT(translated({"run", "-ngl", "99"}), ElementsAre("run", "--backend", "auto"));
  EXPECT_THAT(translated({"run", "-ngl", "0"}), ElementsAre("run", "--backend", "cpu"));
  EXPECT_THAT(translated({"run", "-ngl", "99", "--backend", "cpu"}), ElementsAre("run", "--backend", "cpu"));
  EXPECT_THAT(translated({"serve", "--ssl-key-file", "k", "--cors-origins", "*", "--log-disable"}),
              ElementsAre("serve", "--tls-key", "k", "--cors", "*", "--log", "off"));
  EXPECT_THAT(translated({"serve", "--version"}), ElementsAre("--version"));
  // A sampler that is switched off is no matter.
  EXPECT_THAT(translated({"run", "--mirostat", "0", "--dry-multiplier", "0.0", "--typical", "1.0"}),
              ElementsAre("run"));
  EXPECT_THAT(problem({"run", "--mirostat", "2"}), HasSubstr("--mirostat 2: not supported"));
}

TEST_F(LlamaFlags, AreNoValues) {
  EXPECT_EQ(problem({"run", "-m", "-ngl", "99"}), "-m: a value is missing");
  EXPECT_EQ(problem({"run", "-ngl", "-fa"}), "-ngl: a value is missing");
  EXPECT_EQ(problem({"run", "-n"}), "-n: a value is missing");
  EXPECT_THAT(translated({"run", "-fa", "-n", "3"}), ElementsAre("run", "-n", "3"));
  EXPECT_THAT(translated({"run", "-fa", "off", "-n", "3"}), ElementsAre("run", "-n", "3"));
  EXPECT_THAT(told, ElementsAre("-fa off: passed over: attention is always fused"));
  // A text may begin with a dash where it is no flag.
  EXPECT_THAT(translated({"run", "-p", "-x and -y", "-n", "-1"}), ElementsAre("run", "-p-x and -y", "-n-1"));
  EXPECT_THAT(translated({"run", "--stop", "--- end"}), ElementsAre("run", "--stop=--- end"));
  EXPECT_THAT(problem({"run", "-xyz"}), HasSubstr("-xyz: no such flag"));
  EXPECT_THAT(problem({"perplexity", "-ngl", "99"}), HasSubstr("-ngl: no such flag"));
  EXPECT_THAT(translated({"bench", "-npl", "1,2", "-pg", "3,4"}),
              ElementsAre("bench", "--npl", "1,2", "--pg", "3,4"));
  EXPECT_THAT(translated({"tokenize", "-p", "x"}), ElementsAre("tokenize", "-p", "x"));
}

/// What the help of llama-bench listed in 2026, but for what it shares with us.
TEST_F(LlamaFlags, OfLlamaBenchAreTakenToo) {
  const std::vector<std::string> switches = {"--version", "--list-devices", "-v", "--verbose"};
  std::istringstream names(
      "-fitt --fit-target -fitc --fit-ctx --rpc -ctv --cache-type-v -C --cpu-mask --cpu-strict --poll -ngl "
      "--n-gpu-layers -ncmoe --n-cpu-moe -sm --split-mode -mg --main-gpu -nkvo --no-kv-offload -fa "
      "--flash-attn -dev --device -mmp --mmap -dio --direct-io -lm --load-mode -lzm --lazy-mode -embd "
      "--embeddings -ts --tensor-split -ot --override-tensor -nopo --no-op-offload --no-host --repack --numa "
      "--prio --version --list-devices -v --verbose -m --model -hf -hfr --hf-repo -hff --hf-file -hft "
      "--hf-token -p --n-prompt -n --n-gen -pg -d --n-depth -b --batch-size -ub --ubatch-size -ctk "
      "--cache-type-k -t --threads -r --repetitions --delay -o --output -oe --output-err");
  for (std::string flag; names >> flag;) {
    std::vector<std::string> arguments{"bench", flag, "1", "-r", "3"};
    if (flag.starts_with("-hf") || flag == "--hf-repo") arguments[2] = "a/b";
    if (std::ranges::find(switches, flag) != switches.end()) arguments.erase(arguments.begin() + 2);
    const std::string wrong = problem(arguments);
    EXPECT_THAT(wrong, Not(HasSubstr("no such flag"))) << flag;
    EXPECT_EQ(wrong.substr(0, flag.size()), wrong.empty() ? "" : flag);
  }
  EXPECT_THAT(translated({"bench", "-ngl", "99", "-fa", "0,1", "-mmp", "0", "-nkvo", "0", "-p", "8"}),
              ElementsAre("bench", "--backend", "auto", "-p", "8"));
  EXPECT_THAT(told, testing::SizeIs(3));
  EXPECT_THAT(problem({"bench", "-nkvo", "0,1"}), HasSubstr("-nkvo 0,1: not supported: --backend says"));
}

class LlamaCommand : public testing::Test, public test::CommandFolder {
 protected:
  LlamaCommand() : CommandFolder("llama") {}
};

TEST_F(LlamaCommand, LinesThatPeoplePasteRun) {
  const std::string text = run("run -n 8 --temp 0 -p 'The wolf'").out;
  const CommandResult result =
      run("run -fa on -b 2048 -ub 512 --jinja --no-mmap --mlock -tb 8 --no-warmup -no-cnv --n-predict 8 "
          "--temperature 0 "
          "-p 'The wolf'");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, text);
  EXPECT_THAT(result.err, HasSubstr("sluice: --jinja: passed over: templates are always read as Jinja\n"));
  EXPECT_EQ(run("run -n 3 -p '-dash'").code, 0);
  const CommandResult refused = run("run -ncmoe 10 -n 1");
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(
      refused.err,
      "sluice: -ncmoe 10: not supported: --backend says where weights lie, --gpu-memory how many on a GPU\n");
  const CommandResult version = run("run --version");
  EXPECT_EQ(version.code, 0);
  EXPECT_THAT(version.out, HasSubstr("0."));
  EXPECT_THAT(run("serve --no-webui --metrics --help").out, HasSubstr("--parallel"));
}

}  // namespace
}  // namespace sluice::cli
