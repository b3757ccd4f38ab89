// Fuzz targets of the server over their corpora. Their CHECKs end the program where the server would be
// wrong.
#include "support/fuzz_corpus.h"

extern "C" int request_fuzz(const uint8_t* data, size_t size);
extern "C" int http_fuzz(const uint8_t* data, size_t size);

namespace sluice::test {
namespace {

TEST(RequestFuzz, ItsCorpusDoesNoHarm) { EXPECT_GE(run_corpus(request_fuzz, "request"), 300); }
TEST(HttpFuzz, ItsCorpusDoesNoHarm) { EXPECT_GE(run_corpus(http_fuzz, "http"), 100); }

}  // namespace
}  // namespace sluice::test
