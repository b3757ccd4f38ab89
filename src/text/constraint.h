// Which tokens a model may write next, so that what it writes obeys a grammar: a JSON schema, any JSON, a
// GBNF grammar, the tool calls of its own output format. Knows tokens as bytes and grammars over bytes;
// requests, logits and models are not its business.
//
// How one is made: ConstraintVocabulary once a model; for each request a *_constraint function, which throws
// Error (the server's 400) for whatever it cannot promise to keep; for each further sequence of the request
// clone(). Whoever samples asks allowed() before each token and tells accept() the one it took.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_format.h"

namespace sluice::text {

class Tokenizer;

/// Follows one sequence. Different objects may be used by different threads at the same time, those that were
/// cloned from each other too. Does not throw.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  /// Sets bit t % 32 of word t / 32 for each token t that may come next and clears all others; `bits` has at
  /// least (tokens of the vocabulary + 31) / 32 words, and all of them are written. Tokens that end the
  /// generation are allowed where the text may end and nowhere else: not within reasoning either. False:
  /// every token may come, and `bits` is as it was. No bit set: the vocabulary has no token that leads on.
  virtual bool allowed(std::span<uint32_t> bits) = 0;
  /// Goes on behind a token. False when it was not allowed: nothing has changed then.
  virtual bool accept(int32_t token) = 0;
  /// Whether the text so far is whole.
  virtual bool may_end() const = 0;
  /// The same state, going its own way.
  virtual std::unique_ptr<TokenConstraint> clone() const = 0;
  /// About the memory that it and its clones share; 0: little.
  virtual size_t bytes() const { return 0; }
};

/// A vocabulary as constraints see it: a trie of its tokens' bytes, and what constraints have found out about
/// it. Made once a model (some tens of milliseconds, about 12 bytes a byte of tokens); threads may share it.
class ConstraintVocabulary {
 public:
  /// `tokenizer` must outlive only the constructor. Throws Error when the vocabulary is no good for this.
  explicit ConstraintVocabulary(const Tokenizer& tokenizer);
  ~ConstraintVocabulary();
  ConstraintVocabulary(const ConstraintVocabulary&) = delete;
  ConstraintVocabulary& operator=(const ConstraintVocabulary&) = delete;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// Which tool calls an answer has.
struct CallRule {
  enum class When {
    Never,     ///< no calls: what looks like one is text
    Instead,   ///< calls may stand in place of the content (tool_choice auto beside a response format)
    Required,  ///< calls and nothing else (tool_choice required, or one named tool)
  };
  When when = When::Never;
  const nlohmann::ordered_json* tools = nullptr;  ///< the request's, in OpenAI's form; needed unless Never
  std::string only;                               ///< the one tool that may be called; empty: any
  bool parallel = true;                           ///< several calls may follow each other
};

/// Where an answer begins and how its model writes.
struct AnswerPlace {
  std::shared_ptr<const ConstraintVocabulary> vocabulary;
  const OutputFormat* format = nullptr;  ///< the model's; null: no reasoning and no calls
  /// The prompt ends within reasoning (ChatPrompt::starts_in_thinking): anything but a call or an end may
  /// come until kThinkClose, and the grammar begins behind it.
  bool starts_in_thinking = false;
  /// Takes lines that name what of the schemas is left unbound; null: nobody reads them.
  std::vector<std::string>* notes = nullptr;
  /// What making it may take, in steps of the automata's making (12 million are about a second).
  int64_t most_steps = 12'000'000;
};

/// An answer that is one JSON value of this schema (docs/structured_output.md lists what schemas may hold).
/// Throws Error that names the keyword and its path, as in "schema: $.properties.a.not: not supported"; with
/// `strict` for a uniqueItems that cannot be kept, too, which is else left unbound.
std::unique_ptr<TokenConstraint> json_schema_constraint(const nlohmann::ordered_json& schema,
                                                        const AnswerPlace& place, const CallRule& calls = {},
                                                        bool strict = false);
/// An answer that is any JSON object.
std::unique_ptr<TokenConstraint> json_object_constraint(const AnswerPlace& place, const CallRule& calls = {});
/// An answer of this GBNF grammar, whose first rule is `root`, to the letter. Throws Error with the line.
std::unique_ptr<TokenConstraint> gbnf_constraint(std::string_view grammar, const AnswerPlace& place,
                                                 const CallRule& calls = {});
/// An answer of tool calls alone, arguments by the tools' schemas; `calls.when` must be Required. What cannot
/// be kept of a schema is left unbound. Throws Error for formats that have no calls and where no tool can be
/// called.
std::unique_ptr<TokenConstraint> tool_call_constraint(const AnswerPlace& place, const CallRule& calls);

}  // namespace sluice::text
