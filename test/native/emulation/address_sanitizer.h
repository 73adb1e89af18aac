// Defines ADDRESS_SANITIZER in builds with Clang's AddressSanitizer.
#pragma once

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ADDRESS_SANITIZER 1
#endif
#endif
