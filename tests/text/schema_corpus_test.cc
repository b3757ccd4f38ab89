// tests/fuzz/schema_fuzz.cc over its corpus: schemas, patterns, tools and grammars, and walks through them.
#include "support/fuzz_corpus.h"

namespace sluice::test {
namespace {

TEST(SchemaFuzz, ItsCorpusDoesNoHarm) { EXPECT_GE(run_corpus("schema"), 700); }

}  // namespace
}  // namespace sluice::test
