// Fuzz targets of text over their corpora: schemas, patterns, tools, grammars and walks through them;
// templates.
#include "support/fuzz_corpus.h"

extern "C" int schema_fuzz(const uint8_t* data, size_t size);
extern "C" int gbnf_fuzz(const uint8_t* data, size_t size);
extern "C" int jinja_fuzz(const uint8_t* data, size_t size);

namespace sluice::test {
namespace {

TEST(SchemaFuzz, ItsCorpusDoesNoHarm) { EXPECT_GE(run_corpus(schema_fuzz, "schema"), 300); }
TEST(GbnfFuzz, ItsCorpusDoesNoHarm) { EXPECT_GE(run_corpus(gbnf_fuzz, "gbnf"), 50); }
TEST(JinjaFuzz, ItsCorpusDoesNoHarm) { EXPECT_GE(run_corpus(jinja_fuzz, "jinja"), 300); }

}  // namespace
}  // namespace sluice::test
